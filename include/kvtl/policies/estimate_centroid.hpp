// Estimator: every unit that a query did not attend joins its softmax as one entry that counts for all
// entries of the unit (RetroInfer's estimation zone; the second-order refinement is ours).
//
//   logit = s q . mean key + ln n  [+ cautious_gain(sigma, n)]      value = mean value
//
// s: the scale of logits, n: entries of the unit, sigma: standard deviation of their logits. By Jensen's
// inequality the first two terms underestimate: the mean of exp(x) is at least exp of the mean. For normal x
// the ratio is exp(sigma^2 / 2), and the gain equals it while it is small. spread_gain.hpp defines sigma, and
// explains the bound that n entries set. Equal keys have the same weight estimated and read, and so have n
// equal keys.
//
// Quality: three English texts through the embedded model, recorded and replayed (prompt of 256, decode to
// 1,400), with clusters of 12 entries at the end. Mean output error over layers and steps, by attended
// entries:
//
//                                       64      96      128     256
//   no estimate                         0.222   0.164   0.134   0.070
//   first order                         0.113   0.074   0.057   0.026
//   with the spread                     0.096   0.061   0.047   0.022
//   best entries by true attention      0.135   0.102   0.084   0.045
//
// moment_estimate adds two things, both from moments that the lane gathers of all entries that join units.
//
// The value correction: values follow their keys, so a unit's attended value is not its mean value. With
// C = sum (k - mean key)(v - mean value)^T and S over the lane, a unit's own covariance is about
// C m2 / (n sum S). All unread units together add to the numerator of query g
//
//   M_g s (q_g^T C) / sum S,   M_g = sum_u n exp(logit) (m2 / n) min(1, bend / sigma)
//
// One product of D x D per query, no bytes per unit. It halves the error where values follow keys.
//
// The price: the expected squared error of the output per entry of unit u, if it is estimated:
//
//   V sum_g exp(2 (z + rms_gain(1.5 sigma, n))) / Z_g^2 (1 - exp(-sigma^2))
//
// z: logit of the mean key, V: variance of the lane's values, Z_g: sum of exp over what is in memory and all
// estimates. The factor 1.5 is fear of spread: without it a unit that looks dull may hide the one key that a
// query looks for.
//
// Bytes:  D + 4 per unit and KV head (mean value as codes with a scale; 2 D as f16), one sum of 4 D per open
//         page. Keys: the clusterer's means. With the spread 4 D per lane (units_view::spread).
//         moment_estimate: 2 D^2 + 4 D + 16 per KV head.
// Cost:   O(U D) per KV head and step, times G with the spread (its weights differ by query). moment_estimate:
//         O(G D^2) more per step, and O(D^2) per entry that joins a unit.
// Limits: clusterers that keep means. A variance per dimension and unit does not help: bench/DEAD_ENDS.md.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/running_mean.hpp>
#include <kvtl/policies/support/spread_gain.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/slots/estimator.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct estimate_options {
    bool spread = false;            ///< the gain from the spread of the keys
    bool moments = false;           ///< the value correction, and the price of an error; with spread
    bool pooled = false;            ///< all units share one value: the mean over all entries in units
    std::uint32_t per_mille = 1000; ///< default of config.share
};

template <estimate_options Options> struct unit_estimate {
    static_assert(!Options.moments || (Options.spread && !Options.pooled));
    static constexpr std::string_view name = Options.moments  ? "moment_estimate"
                                             : Options.pooled ? "mean_value"
                                             : Options.spread ? "centroid_estimate_spread"
                                                              : "centroid_estimate";
    static constexpr engine_input needs = engine_input::q | engine_input::k | engine_input::v;
    static constexpr bool estimates = true;
    static constexpr bool summarises = true;
    static constexpr bool needs_means = true;
    static constexpr bool needs_spread = Options.spread;

    struct config {
        float share = static_cast<float>(Options.per_mille) / 1000.0F; ///< of all units: the best that were
                                                                       ///< not attended, by their mean score
        std::uint32_t bits = 8; ///< of a number of the mean values: 8 (codes) or 16 (f16)
        template <class Visit> void fields(Visit&& visit) {
            visit("share", share);
            visit("bits", bits);
        }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : share_(c.share), codes_(c.bits == 8) {}
        [[nodiscard]] static status check(const config& c) noexcept {
            if (!(c.share >= 0.0F && c.share <= 1.0F))
                return status::failure(errc::invalid_argument, "estimator.share is %g; valid: 0 to 1",
                                       static_cast<double>(c.share));
            if (c.bits != 8 && c.bits != 16)
                return status::failure(errc::invalid_argument, "estimator.bits is %u; valid: 8 and 16",
                                       c.bits);
            return {};
        }

        // ------------------------------------------------------------------------------------- summaries
        [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
            return shape.lane_heads * head_bytes(shape.dim);
        }
        [[nodiscard]] std::size_t lane_bytes(const summary_shape& shape) const noexcept {
            return Options.moments ? shape.lane_heads * moments::bytes(shape.dim) : 0;
        }
        void gather(const summary_view& view, const joining_entry& e) const noexcept
            requires(Options.moments) {
            const std::uint32_t dim = view.shape.dim;
            const float* sum = view.of_running<float>(); // of the values of the unit's entries so far
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h)
                moments(view.lane, h, dim)
                    .add(e, std::size_t{h} * dim, e.before == 0 ? nullptr : sum + std::size_t{h} * dim);
        }
        [[nodiscard]] std::size_t running_bytes(const summary_shape& shape) const noexcept {
            return detail::running_sum::bytes(shape.width());
        }
        void clear(const summary_view& view, std::uint32_t u) const noexcept {
            std::memset(view.of<std::byte>(u), 0, unit_bytes(view.shape));
        }
        void absorb(const summary_view& view, std::uint32_t u, std::uint32_t i, const float*,
                    const float* value) const noexcept {
            const std::uint32_t dim = view.shape.dim;
            auto* sum = view.of_running<float>();
            detail::running_sum::add(sum, i, value, view.shape.width());
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h, sum += dim) {
                std::byte* to = view.of<std::byte>(u) + h * head_bytes(dim);
                if (codes_) {
                    const float scale =
                        detail::running_sum::store(sum, i + 1, reinterpret_cast<std::int8_t*>(to), dim);
                    std::memcpy(to + scale_at(dim), &scale, sizeof scale);
                } else {
                    detail::running_sum::store(sum, i + 1, reinterpret_cast<f16*>(to), dim);
                }
            }
        }
        void resume(const summary_view& view, std::uint32_t u, std::uint32_t entries) const noexcept {
            auto* sum = view.of_running<float>();
            for (std::uint32_t h = 0; h < view.shape.lane_heads; ++h)
                decode(view.of<std::byte>(u) + h * head_bytes(view.shape.dim), view.shape.dim,
                       sum + std::size_t{h} * view.shape.dim);
            simd::scale(static_cast<float>(entries), sum, view.shape.width());
        }

        // -------------------------------------------------------------------------------------- estimate
        [[nodiscard]] std::size_t scratch_floats(const summary_shape& shape,
                                                 std::uint32_t max_units) const noexcept {
            return 2 * block * shape.dim + shape.dim + shape.group +
                   std::max(share_ < 1.0F ? 2 * std::size_t{max_units} : 0,
                            Options.moments ? std::size_t{shape.group} * max_units : 0);
        }

        /// The error that unit u leaves in the output when it is estimated, per entry (the header has the formula).
        void price(const estimator_input& in, const partial& kept, std::span<float> out) const noexcept
            requires(Options.moments) {
            const units_view& units = in.units;
            const std::uint32_t n = units.count;
            float* const logits = in.scratch.data(); // (G, U)
            units.mean.score(in.q, in.group, n, logits);
            to_logits(in.logits, logits, std::size_t{in.group} * n);
            std::array<float, 64> along; // by query: s times spread_along()
            std::array<softmax_sum, 64> all;
            for (std::uint32_t g = 0; g < in.group; ++g) {
                along[g] = in.logits.scale * detail::spread_along(in.q + std::size_t{g} * units.dim, units);
                all[g] = {kept.max[g], kept.sum[g]};
            }
            float x[spreads::size];
            for (std::uint32_t first = 0; first < n; first += spreads::size) { // what all units weigh
                const spreads of(units, first);
                for (std::uint32_t g = 0; g < in.group; ++g) {
                    const float* logit = logits + std::size_t{g} * n + first;
                    for (std::uint32_t i = 0; i < of.count; ++i)
                        x[i] = logit[i] + of.log_entries[i] +
                               detail::cautious_gain(along[g] * of.deviation[i], of.bend[i]);
                    all[g].add(x, of.count);
                }
            }
            const float variance = moments(units.summary.lane, units.head, units.dim).value_variance();
            float unlike[spreads::size];
            for (std::uint32_t first = 0; first < n; first += spreads::size) {
                const spreads of(units, first);
                for (std::uint32_t g = 0; g < in.group; ++g) {
                    const float* logit = logits + std::size_t{g} * n + first;
                    const float log_all = all[g].log();
                    for (std::uint32_t i = 0; i < of.count; ++i) {
                        const float sigma = along[g] * of.deviation[i];
                        const float share =
                            logit[i] + detail::rms_gain(caution * sigma, of.bend[i]) - log_all;
                        x[i] = std::min(2.0F * share, largest_log_price);
                        unlike[i] = -sigma * sigma;
                    }
                    static_cast<void>(simd::exp_shifted_sum(x, of.count, 0.0F));
                    static_cast<void>(simd::exp_shifted_sum(unlike, of.count, 0.0F));
                    for (std::uint32_t i = 0; i < of.count; ++i)
                        out[first + i] += variance * x[i] * (1.0F - unlike[i]);
                }
            }
        }

        void add(const estimator_input& in, const partial& into) const noexcept {
            const std::uint32_t dim = in.units.dim;
            rows x{in.scratch.data(), in.scratch.data() + block * dim, in.scratch.data() + 2 * block * dim};
            const std::span<float> rest = in.scratch.subspan((2 * block + 1) * dim);
            x.along = rest.data();
            std::array<softmax_sum, Options.moments ? 64 : 1> tilt{};
            x.tilt = tilt.data();
            for (std::uint32_t g = 0; g < in.group; ++g) {
                if constexpr (Options.spread)
                    x.along[g] =
                        in.logits.scale * detail::spread_along(in.q + std::size_t{g} * dim, in.units);
            }
            if constexpr (Options.pooled) pool_values(in, x.key, x.pooled);
            const std::span<float> score = rest.subspan(in.group);
            const float bar = share_ < 1.0F ? rank(in, score) : 0.0F;
            auto left = static_cast<std::size_t>(std::lround(share_ * static_cast<float>(in.units.count)));
            for (std::uint32_t u = 0; u < in.units.count && left > 0; ++u) {
                if (!wanted(in, u) || (share_ < 1.0F && score[u] < bar)) continue;
                --left;
                take(in, u, x);
                if (x.count == block) attend(in, x, into);
            }
            if (x.count > 0) attend(in, x, into);
            if constexpr (Options.moments) correct_values(in, tilt, into);
        }

      private:
        static constexpr std::size_t block = simd::attend_block;

        /// What a lane gathers of one head: in a block of its own in the lane's bytes.
        class moments {
          public:
            moments(std::byte* of_lane, std::uint32_t head, std::uint32_t dim) noexcept
                : at_(reinterpret_cast<header*>(of_lane + head * bytes(dim))), dim_(dim) {}
            [[nodiscard]] static constexpr std::size_t bytes(std::size_t dim) noexcept {
                return (sizeof(header) + dim * sizeof(float) + dim * dim * sizeof(f16) + 63) / 64 * 64;
            }

            /// value_sum: of `e.before` values, or null.
            void add(const joining_entry& e, std::size_t at, const float* value_sum) const noexcept {
                const float* key = e.key + at;
                const float* mean = e.mean + at;
                const float* value = e.value + at;
                at_->entries += 1.0F;
                at_->squares += simd::dot(value, value, dim_);
                simd::add(value, value_sums(), dim_);
                // The mean of what was gathered, over the last `memory` entries: a sum in 16 bits would stop growing.
                const float rate = 1.0F / std::min(at_->entries, memory);
                float residual[64];
                for (std::uint32_t first = 0; first < dim_; first += 64) {
                    const std::uint32_t n = std::min(64U, dim_ - first);
                    std::copy_n(value + first, n, residual);
                    if (value_sum != nullptr)
                        simd::axpy(-1.0F / static_cast<float>(e.before), value_sum + first, residual, n);
                    for (std::uint32_t i = 0; i < n; ++i)
                        residual[i] = std::clamp(residual[i], -largest, largest);
                    for (std::uint32_t r = 0; r < dim_; ++r)
                        simd::move_towards(std::clamp(e.weight() * (key[r] - mean[r]), -largest, largest),
                                           residual, rate, cross() + std::size_t{r} * dim_ + first, n);
                }
            }
            /// Mean squared distance of the lane's values to their mean.
            [[nodiscard]] float value_variance() const noexcept {
                if (!(at_->entries > 0.0F)) return 0.0F;
                const float share = 1.0F / at_->entries;
                const float mean = simd::dot(value_sums(), value_sums(), dim_) * share * share;
                return std::max(0.0F, at_->squares * share - mean);
            }
            [[nodiscard]] float entries() const noexcept { return at_->entries; }
            /// out += factor times (q C), C: the mean of (key - mean key)(value - mean value)^T. q, out: (D)
            void add_correction(const float* q, float factor, float* out) const noexcept {
                for (std::uint32_t r = 0; r < dim_; ++r)
                    simd::axpy(factor * q[r], cross() + std::size_t{r} * dim_, out, dim_);
            }

          private:
            static constexpr float memory = 4096;
            static constexpr float largest = 240; ///< residual: products of two are f16 numbers
            struct header {
                float entries, squares, unused[2];
            };
            [[nodiscard]] float* value_sums() const noexcept { return reinterpret_cast<float*>(at_ + 1); }
            [[nodiscard]] f16* cross() const noexcept { return reinterpret_cast<f16*>(value_sums() + dim_); }

            header* at_;
            std::uint32_t dim_;
        };

        static constexpr float caution = 1.5F;            ///< factor on sigma in a price: fear of spread
        static constexpr float largest_log_price = 40.0F; ///< keeps a price finite

        /// A sum of exp(x), with the largest x taken out.
        struct softmax_sum {
            float max = -std::numeric_limits<float>::infinity(), sum = 0;

            void add(float* x, std::size_t n) noexcept { // x is scratch then
                const float top = std::max(max, simd::max_of(x, n));
                if (!(top > -std::numeric_limits<float>::infinity())) return;
                sum = (sum > 0.0F ? sum * std::exp(max - top) : 0.0F) + simd::exp_shifted_sum(x, n, top);
                max = top;
            }
            [[nodiscard]] float log() const noexcept { return max + std::log(sum); }
        };
        /// What units [first, first + count) have beside their means.
        struct spreads {
            static constexpr std::uint32_t size = 64;
            spreads(const units_view& units, std::uint32_t first) noexcept
                : count(std::min(size, units.count - first)) {
                for (std::uint32_t i = 0; i < count; ++i) {
                    const unit_record& unit = units.unit[first + i];
                    const auto entries = static_cast<float>(unit.entries);
                    log_entries[i] = std::log(entries); // -inf for a unit that has none
                    deviation[i] = unit.entries == 0 ? 0.0F : std::sqrt(unit.m2 / entries);
                    bend[i] = std::sqrt(std::max(0.0F, log_entries[i]));
                }
            }
            std::uint32_t count;
            float log_entries[size], deviation[size], bend[size];
        };

        /// Units that are brought together for one call of the kernel.
        struct rows {
            float *key, *value;     ///< (block, D)
            float* pooled;          ///< (D)
            float* along = nullptr; ///< (G) s times spread_along() of the query
            softmax_sum* tilt =
                nullptr; ///< (G) with moments: sum over units of exp(logit) a min(1, bend / sigma)
            std::size_t count = 0;
            std::array<std::uint32_t, block> unit{};
            std::array<float, block> log_entries{};
            std::array<float, block> deviation{}; ///< root mean square of the keys' distances to their mean
            std::array<float, block> bend{};      ///< spread_bend() of the unit
        };

        /// Codes of a head, then their scale; or f16 numbers.
        [[nodiscard]] std::size_t head_bytes(std::uint32_t dim) const noexcept {
            return codes_ ? scale_at(dim) + sizeof(float) : dim * sizeof(f16);
        }
        [[nodiscard]] static std::size_t scale_at(std::uint32_t dim) noexcept { return (dim + 3) / 4 * 4; }
        void decode(const std::byte* of_head, std::uint32_t dim, float* out) const noexcept {
            if (!codes_) return simd::decode(reinterpret_cast<const f16*>(of_head), out, dim);
            float scale = 0;
            std::memcpy(&scale, of_head + scale_at(dim), sizeof scale);
            simd::dequantise(reinterpret_cast<const std::int8_t*>(of_head), scale, out, dim);
        }
        /// The mean value of unit i, of the head that is asked for.
        void value_of(const units_view& u, std::uint32_t i, float* out) const noexcept {
            decode(u.summary.of<std::byte>(i) + u.head * head_bytes(u.dim), u.dim, out);
        }
        /// True when at least one query has not attended the unit.
        [[nodiscard]] static bool wanted(const estimator_input& in, std::uint32_t u) noexcept {
            if (in.units.entries(u) == 0) return false;
            for (std::uint32_t g = 0; g < in.group; ++g)
                if (in.missing(u, g)) return true;
            return false;
        }

        /// The mean query's scores; returns what a unit must reach to be among the best. score: (2, U)
        [[nodiscard]] float rank(const estimator_input& in, std::span<float> score) const noexcept {
            const units_view& units = in.units;
            const std::size_t n = units.count, dim = units.dim;
            const auto most = static_cast<std::size_t>(std::lround(share_ * static_cast<float>(n)));
            if (most == 0) return 0.0F;
            float* mean = in.scratch.data(); // the block is not in use yet
            std::copy_n(in.q, dim, mean);
            for (std::uint32_t g = 1; g < in.group; ++g) simd::add(in.q + g * dim, mean, dim);
            units.mean.score(mean, 1, units.count, score.data());
            for (std::uint32_t u = 0; u < n; ++u)
                if (!wanted(in, u)) score[u] = -std::numeric_limits<float>::infinity();
            const std::span<float> sorted = score.subspan(n, n);
            std::copy_n(score.begin(), n, sorted.begin());
            const auto last = sorted.begin() + static_cast<std::ptrdiff_t>(most - 1);
            std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>{});
            return *last;
        }

        /// The mean value over all entries in units. `row`: scratch of D floats.
        void pool_values(const estimator_input& in, float* row, float* out) const noexcept {
            const units_view& u = in.units;
            float entries = 0.0F;
            for (std::uint32_t i = 0; i < u.count; ++i) entries += static_cast<float>(u.entries(i));
            std::fill_n(out, u.dim, 0.0F);
            for (std::uint32_t i = 0; i < u.count; ++i) {
                value_of(u, i, row);
                simd::axpy(static_cast<float>(u.entries(i)) / entries, row, out, u.dim);
            }
        }

        void take(const estimator_input& in, std::uint32_t u, rows& x) const noexcept {
            const units_view& units = in.units;
            const std::uint32_t dim = units.dim;
            const auto entries = static_cast<float>(units.entries(u));
            units.mean.get(u, x.key + x.count * dim);
            if constexpr (!Options.pooled) value_of(units, u, x.value + x.count * dim);
            x.unit[x.count] = u;
            x.log_entries[x.count] = std::log(entries);
            if constexpr (Options.spread) {
                x.deviation[x.count] = units.unit != nullptr ? std::sqrt(units.unit[u].m2 / entries) : 0.0F;
                x.bend[x.count] = detail::spread_bend(units.entries(u));
            }
            ++x.count;
        }

        static void attend(const estimator_input& in, rows& x, const partial& into) noexcept {
            const std::uint32_t dim = in.units.dim;
            const rows_view<float> keys{x.key, x.count, dim, dim};
            const rows_view<float> values = Options.pooled ? rows_view<float>{x.pooled, x.count, dim, 0}
                                                           : rows_view<float>{x.value, x.count, dim, dim};
            if (!Options.spread && nobody_attended(in, x)) {
                simd::attend_rows(in.q, dim, in.logits, keys, values, x.log_entries.data(), into, in.attend);
            } else {
                std::array<float, block> weight{};
                for (std::uint32_t g = 0; g < in.group; ++g) {
                    for (std::size_t i = 0; i < x.count; ++i) {
                        weight[i] = in.missing(x.unit[i], g) ? x.log_entries[i]
                                                             : -std::numeric_limits<float>::infinity();
                        if constexpr (Options.spread)
                            weight[i] += detail::cautious_gain(x.along[g] * x.deviation[i], x.bend[i]);
                    }
                    if constexpr (Options.moments) tilt_of(in, x, g, weight.data());
                    simd::attend_rows(in.q, dim, in.logits, keys, values, weight.data(), into, in.attend,
                                      std::uint64_t{1} << g);
                }
            }
            x.count = 0;
        }
        /// Query g's units in x join its tilt. weight: what is added to their logits.
        static void tilt_of(const estimator_input& in, const rows& x, std::uint32_t g,
                            const float* weight) noexcept {
            float logit[block];
            const std::uint32_t dim = in.units.dim;
            simd::dot_rows(in.q + std::size_t{g} * dim, rows_view<float>{x.key, x.count, dim, dim}, logit);
            to_logits(in.logits, logit, x.count);
            for (std::size_t i = 0; i < x.count; ++i) {
                const float a = x.deviation[i] * x.deviation[i], sigma = x.along[g] * x.deviation[i];
                const float bounded = sigma > x.bend[i] ? a * (x.bend[i] / sigma) : a;
                logit[i] += weight[i] + std::log(bounded); // -inf for equal keys
            }
            x.tilt[g].add(logit, x.count);
        }
        /// Values of a unit are not its mean value, but tilted along the query as its keys are.
        template <class Tilts>
        static void correct_values(const estimator_input& in, const Tilts& tilt,
                                   const partial& into) noexcept {
            const units_view& u = in.units;
            const moments of_lane(u.summary.lane, u.head, u.dim);
            const float squares = simd::sum(u.spread.data(), u.spread.size());
            if (!(squares > 0.0F)) return;
            for (std::uint32_t g = 0; g < in.group; ++g) {
                if (!(tilt[g].sum > 0.0F)) continue;
                const float mass = tilt[g].sum * std::exp(tilt[g].max - into.max[g]);
                of_lane.add_correction(in.q + std::size_t{g} * u.dim,
                                       mass * in.logits.scale * of_lane.entries() / squares,
                                       into.acc + std::size_t{g} * u.dim);
            }
        }
        [[nodiscard]] static bool nobody_attended(const estimator_input& in, const rows& x) noexcept {
            for (std::size_t i = 0; i < x.count; ++i)
                for (std::uint32_t g = 0; g < in.group; ++g)
                    if (!in.missing(x.unit[i], g)) return false;
            return true;
        }

        float share_ = 1.0F;
        bool codes_ = true;
    };
};

/// RetroInfer's estimate; PerMille of all units, the best that were not attended.
template <std::uint32_t PerMille>
using best_centroid_estimate = unit_estimate<estimate_options{.per_mille = PerMille}>;
using centroid_estimate = best_centroid_estimate<1000>;
/// The same with the gain from the spread of the keys.
using centroid_estimate_spread = unit_estimate<estimate_options{.spread = true}>;
/// The same with the value correction; it can say what error an estimate makes.
using moment_estimate = unit_estimate<estimate_options{.spread = true, .moments = true}>;

}} // namespace kvtl::v0
