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
// Bytes:  D + 4 per unit and KV head (mean value as codes with a scale; 2 D as f16), one sum of 4 D per open
//         page. Keys: the clusterer's means. With the spread 4 D per lane (units_view::spread).
// Cost:   O(U D) per KV head and step, times G with the spread (its weights differ by query).
// Limits: clusterers that keep means. A variance per dimension and unit does not help: bench/DEAD_ENDS.md.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/policies/support/running_mean.hpp>
#include <kvtl/policies/support/spread_gain.hpp>
#include <kvtl/simd/attend.hpp>
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
    bool pooled = false;            ///< all units share one value: the mean over all entries in units
    std::uint32_t per_mille = 1000; ///< default of config.share
};

template <estimate_options Options> struct unit_estimate {
    static constexpr std::string_view name = Options.pooled   ? "mean_value"
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
        [[nodiscard]] std::size_t lane_bytes(const summary_shape&) const noexcept { return 0; }
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
                   (share_ < 1.0F ? 2 * std::size_t{max_units} : 0);
        }

        void add(const estimator_input& in, const partial& into) const noexcept {
            const std::uint32_t dim = in.units.dim;
            rows x{in.scratch.data(), in.scratch.data() + block * dim, in.scratch.data() + 2 * block * dim};
            const std::span<float> rest = in.scratch.subspan((2 * block + 1) * dim);
            x.along = rest.data();
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
        }

      private:
        static constexpr std::size_t block = simd::attend_block;

        /// Units that are brought together for one call of the kernel.
        struct rows {
            float *key, *value;     ///< (block, D)
            float* pooled;          ///< (D)
            float* along = nullptr; ///< (G) s times spread_along() of the query
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
                    simd::attend_rows(in.q, dim, in.logits, keys, values, weight.data(), into, in.attend,
                                      std::uint64_t{1} << g);
                }
            }
            x.count = 0;
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

}} // namespace kvtl::v0
