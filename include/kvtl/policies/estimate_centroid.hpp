// Estimator: every unit that a query did not attend joins its softmax as one entry that counts for all
// entries of the unit (RetroInfer's estimation zone; kvtl adds the second-order term).
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
// z: logit of the mean key, V: variance of the lane's values, Z_g: sum of exp over everything in memory and all
// estimates. The factor 1.5 raises the price of units with spread keys. Without it, a unit with a low mean may
// hide the one key that a query looks for.
//
// Bytes:  D + 4 per unit and KV head (mean value as codes with a scale; 2 D as f16), one sum of 4 D per open
//         page. Keys: the clusterer's means. With the spread 4 D per lane (units_view::spread).
//         moment_estimate: 2 D^2 + 4 D + 16 per KV head.
// Cost:   per KV head and step a product of the G queries with U mean keys, G exponentials per unit, and a weighted sum of U
//         mean values, from their codes. moment_estimate: two exponentials per unit and query more, and O(G D^2); O(D^2)
//         per entry that joins a unit. The step adds the estimate directly after the price, and reuses its weights.
//         Scratch: (G + 4) U floats.
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
#include <kvtl/simd/spread_gain.hpp>
#include <kvtl/slots/estimator.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
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
            return rows::floats(shape.group, max_units) + (Options.pooled  ? 2 * shape.dim
                                                           : share_ < 1.0F ? block * ((shape.dim + 1) / 2)
                                                                           : 0);
        }

        /// The error that unit u leaves in the output when it is estimated, per entry (the header has the formula). Leaves
        /// in scratch what add() would compute again: estimator_input::priced.
        void price(const estimator_input& in, const partial& kept, std::span<float> out) const noexcept
            requires(Options.moments) {
            const units_view& units = in.units;
            const rows x(in);
            score(in, x);
            detail::get_spreads(units, 0, units.count, x.spreads);
            const float variance = moments(units.summary.lane, units.head, units.dim).value_variance();
            for (std::uint32_t g = 0; g < in.group; ++g) {
                float* const logit = x.logit(g);
                const float along = along_of(in, g);
                simd::log_weights(logit, units.count, along, x.spreads, x.spare);
                const float estimated = simd::log_sum_exp(x.spare, units.count),
                            exact = kept.sum[g] > 0.0F ? kept.max[g] + std::log(kept.sum[g]) : estimated;
                const float top = std::max(estimated, exact);
                const float log_all = kept.sum[g] > 0.0F
                                          ? top + std::log(std::exp(estimated - top) + std::exp(exact - top))
                                          : estimated;
                simd::add_prices(logit, units.count, along, caution, log_all, largest_log_price, variance,
                                 x.spreads, out.data());
                std::copy_n(x.spare, units.count, logit);
            }
        }

        void add(const estimator_input& in, const partial& into) const noexcept {
            rows x(in);
            std::array<float, 64> along,
                tilt; // of a query: s times spread_along(); bounded_spread() of all units
            for (std::uint32_t g = 0; g < in.group; ++g) along[g] = along_of(in, g);
            if (!in.priced || share_ < 1.0F) {
                score(in, x);
                if (share_ < 1.0F) keep_best(in, x);
                detail::get_spreads(in.units, 0, in.units.count, x.spreads);
                if (x.id != nullptr) x.take_spreads();
                for (std::uint32_t g = 0; g < in.group; ++g)
                    simd::log_weights(x.logit(g), x.count, along[g], x.spreads, x.logit(g));
            }
            leave_out_attended(in, x);
            bool nothing = true;
            for (std::uint32_t g = 0; g < in.group; ++g) {
                const float top = simd::max_of(x.logit(g), x.count);
                nothing = nothing && !(top > -std::numeric_limits<float>::infinity());
                if (!(top > into.max[g])) continue;
                const float shrink = into.sum[g] > 0.0F ? std::exp(into.max[g] - top) : 0.0F;
                simd::scale(shrink, into.acc + std::size_t{g} * into.dim, into.dim);
                into.sum[g] *= shrink;
                into.max[g] = top;
            }
            if (nothing) return;
            if constexpr (Options.pooled) pool_values(in, x.behind);
            for (std::uint32_t g = 0; g < in.group; ++g) {
                float* const weight = x.logit(g);
                const float shift =
                    into.max[g] > -std::numeric_limits<float>::infinity() ? into.max[g] : 0.0F;
                const float sum = simd::exp_shifted_sum(weight, x.count, shift);
                into.sum[g] += sum;
                if constexpr (Options.moments)
                    tilt[g] = simd::bounded_spread(weight, x.count, along[g], x.spreads);
                if constexpr (Options.pooled)
                    simd::axpy(sum, x.behind, into.acc + std::size_t{g} * into.dim, into.dim);
            }
            if constexpr (!Options.pooled)
                for (std::uint32_t first = 0; first < x.count; first += block)
                    add_values(in, x, first, std::min<std::uint32_t>(block, x.count - first), into);
            if constexpr (Options.moments) correct_values(in, tilt.data(), into);
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

        /// Rows in scratch, of all units of a head or of those that are estimated.
        struct rows {
            explicit rows(const estimator_input& in) noexcept
                : units(in.units.count), count(units), logits(in.scratch.data()),
                  spare(logits + std::size_t{in.group} * units), spreads{spare + units,
                                                                         spare + 2 * std::size_t{units},
                                                                         spare + 3 * std::size_t{units}},
                  weight(spare + 4 * std::size_t{units}), scale(weight + std::size_t{in.group} * block),
                  behind(scale + block) {}
            [[nodiscard]] static std::size_t floats(std::size_t group, std::size_t max_units) noexcept {
                return (group + 4) * max_units + (group + 1) * block;
            }
            [[nodiscard]] float* logit(std::uint32_t g) const noexcept {
                return logits + std::size_t{g} * units;
            }
            [[nodiscard]] std::uint32_t unit(std::uint32_t i) const noexcept {
                return id == nullptr ? i : id[i];
            }
            /// From those of all units to those that `id` names.
            void take_spreads() const noexcept {
                for (float* row : {spreads.log_entries, spreads.deviation, spreads.bend})
                    for (std::uint32_t i = 0; i < count; ++i) row[i] = row[id[i]];
            }

            std::uint32_t units, count;
            const std::uint32_t* id = nullptr; ///< (count) ascending units of the rows; null: all
            float* logits;                     ///< (G, U): of mean keys, then log_weights(), then weights
            float* spare;                      ///< (U)
            simd::unit_spreads spreads;
            float* weight; ///< (G, block) of a block
            float* scale;  ///< (block) of codes
            float* behind; ///< the mean of all values, or codes of a block side by side
        };
        [[nodiscard]] static float along_of(const estimator_input& in, std::uint32_t g) noexcept {
            if constexpr (!Options.spread) return 0.0F;
            return in.logits.scale * detail::spread_along(in.q + std::size_t{g} * in.units.dim, in.units);
        }
        static void score(const estimator_input& in, const rows& x) noexcept {
            in.units.mean.score(in.q, in.group, x.units, x.logits);
            to_logits(in.logits, x.logits, std::size_t{in.group} * x.units);
        }

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

        /// The rows become those of the share of units that have the highest mean logits, and that some query misses.
        void keep_best(const estimator_input& in, rows& x) const noexcept {
            const auto most = static_cast<std::uint32_t>(std::lround(share_ * static_cast<float>(x.units)));
            float *const mean = x.spare, *const sorted = x.spreads.deviation; // nobody needs it yet
            std::copy_n(x.logits, x.units, mean);
            for (std::uint32_t g = 1; g < in.group; ++g) simd::add(x.logit(g), mean, x.units);
            for (std::uint32_t u = 0; u < x.units; ++u)
                if (!wanted(in, u)) mean[u] = -std::numeric_limits<float>::infinity();
            std::copy_n(mean, x.units, sorted);
            if (most != 0) std::nth_element(sorted, sorted + (most - 1), sorted + x.units, std::greater<>{});
            const float bar = most != 0 ? sorted[most - 1] : 0.0F;
            auto* const id = reinterpret_cast<std::uint32_t*>(x.spreads.bend);
            x.count = 0;
            for (std::uint32_t u = 0; u < x.units && x.count < most; ++u)
                if (mean[u] >= bar && wanted(in, u)) id[x.count++] = u;
            for (std::uint32_t g = 0; g < in.group; ++g)
                for (std::uint32_t i = 0; i < x.count; ++i) x.logit(g)[i] = x.logit(g)[id[i]];
            std::memcpy(x.spare, id, x.count * sizeof *id); // the mean logits have served
            x.id = reinterpret_cast<const std::uint32_t*>(x.spare);
        }
        static void leave_out_attended(const estimator_input& in, const rows& x) noexcept {
            for (std::uint32_t i = 0; i < x.count; ++i) {
                if (in.attended[x.unit(i)] == 0) continue;
                for (std::uint32_t g = 0; g < in.group; ++g)
                    if (!in.missing(x.unit(i), g)) x.logit(g)[i] = -std::numeric_limits<float>::infinity();
            }
        }
        /// The weighted values of rows [first, first + n) join. They are added up where they lie, if all units are estimated.
        void add_values(const estimator_input& in, const rows& x, std::uint32_t first, std::uint32_t n,
                        const partial& into) const noexcept {
            const units_view& units = in.units;
            const std::uint32_t dim = units.dim;
            const std::size_t stride = units.summary.stride, bytes = codes_ ? dim : dim * sizeof(f16);
            const std::byte* from = units.summary.of<std::byte>(0) + units.head * head_bytes(dim);
            if (codes_) {
                for (std::uint32_t i = 0; i < n; ++i)
                    std::memcpy(x.scale + i, from + x.unit(first + i) * stride + scale_at(dim),
                                sizeof(float));
            }
            for (std::uint32_t g = 0; g < in.group; ++g) {
                const float* weight = x.logit(g) + first;
                float* const scaled = x.weight + g * block;
                std::copy_n(weight, n, scaled);
                if (codes_) simd::multiply(x.scale, scaled, n);
            }
            auto* const side_by_side = reinterpret_cast<std::byte*>(x.behind);
            if (x.id != nullptr)
                for (std::uint32_t i = 0; i < n; ++i)
                    std::memcpy(side_by_side + i * bytes, from + x.id[first + i] * stride, bytes);
            const std::byte* values = x.id != nullptr ? side_by_side : from + first * stride;
            const std::size_t apart = x.id != nullptr ? bytes : stride;
            if (codes_)
                simd::accumulate_rows<simd::default_arch, std::int8_t>(
                    x.weight, in.group, {reinterpret_cast<const std::int8_t*>(values), n, dim, apart},
                    into.acc, dim);
            else
                simd::accumulate_rows<simd::default_arch, f16>(
                    x.weight, in.group, {reinterpret_cast<const f16*>(values), n, dim, apart / sizeof(f16)},
                    into.acc, dim);
        }
        /// The mean value over all entries in units. out: (D), and as much scratch behind it.
        void pool_values(const estimator_input& in, float* out) const noexcept {
            const units_view& u = in.units;
            float* const row = out + u.dim;
            float entries = 0.0F;
            for (std::uint32_t i = 0; i < u.count; ++i) entries += static_cast<float>(u.entries(i));
            std::fill_n(out, u.dim, 0.0F);
            for (std::uint32_t i = 0; i < u.count; ++i) {
                value_of(u, i, row);
                simd::axpy(static_cast<float>(u.entries(i)) / entries, row, out, u.dim);
            }
        }
        /// Values of a unit are not its mean value, but tilted along the query as its keys are.
        static void correct_values(const estimator_input& in, const float* tilt,
                                   const partial& into) noexcept {
            const units_view& u = in.units;
            const moments of_lane(u.summary.lane, u.head, u.dim);
            const float squares = simd::sum(u.spread.data(), u.spread.size());
            if (!(squares > 0.0F)) return;
            for (std::uint32_t g = 0; g < in.group; ++g)
                if (tilt[g] > 0.0F)
                    of_lane.add_correction(in.q + std::size_t{g} * u.dim,
                                           tilt[g] * in.logits.scale * of_lane.entries() / squares,
                                           into.acc + std::size_t{g} * u.dim);
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
