// Selector: the units with the highest scores: whole units in score order until the budget of entries is
// used. A unit that would exceed the budget is skipped (DynaKV §4.1: top-k clusters by query-centroid
// similarity).
//
// Cost:   two passes over U scores and sizes, unless units of the last ranks are very small. Only units that
//         may be chosen are sorted; if all units have one size and none is truncated, nothing is sorted.
//
// The reduction turns the scores of the queries that share KV heads into one score per unit. Published
// systems differ only in the reduction, so it is a template argument:
//
//   reduce::group_mean   dynakv: one dot product with the mean query
//   reduce::group_max    a unit scores as with its best query
//   reduce::softmax_sum  softmax of the logits over all units first (KVSwap; ShadowKV takes their maximum)
//   reduce::softmax_max
//   reduce::none         every query chooses for itself (Quest, ClusterKV); the step reads the union
//   reduce::by_head<..>  every KV head of a lane of several chooses for itself, by one of the above
//                        (ShadowKV)
//
// overshoot::cut_off truncates the unit that would exceed the budget to the first entries that fit
// (ClusterKV). It needs reduce::none and at most 16 queries per head; further queries skip such units.
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

namespace reduce {

struct group_mean {
    static constexpr bool linear = true; ///< average the queries first, score once
    /// For an index that is not linear in the query: the mean of the scores.
    static void apply(std::span<float> scores, std::uint32_t queries, std::uint32_t units,
                      float = 1) noexcept {
        for (std::uint32_t g = 1; g < queries; ++g)
            simd::add(&scores[std::size_t{g} * units], scores.data(), units);
        simd::scale(1.0F / static_cast<float>(queries), scores.data(), units);
    }
};

struct group_max {
    static constexpr bool linear = false;
    /// scores: (queries, units) -> first row becomes the reduced scores. `scale`: of logits.
    static void apply(std::span<float> scores, std::uint32_t queries, std::uint32_t units,
                      float = 1) noexcept {
        for (std::uint32_t g = 1; g < queries; ++g)
            for (std::uint32_t u = 0; u < units; ++u)
                scores[u] = std::max(scores[u], scores[std::size_t{g} * units + u]);
    }
};

namespace detail {
/// A row becomes a distribution except for a factor, which is returned: exp(scale * score) is 1 / factor
/// too large.
[[nodiscard]] inline float softmax_row(float* row, std::uint32_t n, float scale) noexcept {
    return 1.0F / simd::exp_shifted_sum(row, n, simd::max_of(row, n), scale);
}
} // namespace detail

struct softmax_sum {
    static constexpr bool linear = false;
    static constexpr bool leaves_weights = true; ///< of attention, no longer logits
    static void apply(std::span<float> scores, std::uint32_t queries, std::uint32_t units,
                      float scale) noexcept {
        simd::scale(detail::softmax_row(scores.data(), units, scale), scores.data(), units);
        for (std::uint32_t g = 1; g < queries; ++g) {
            float* row = &scores[std::size_t{g} * units];
            simd::axpy(detail::softmax_row(row, units, scale), row, scores.data(), units);
        }
    }
};

struct softmax_max {
    static constexpr bool linear = false;
    static constexpr bool leaves_weights = true;
    static void apply(std::span<float> scores, std::uint32_t queries, std::uint32_t units,
                      float scale) noexcept {
        for (std::uint32_t g = 0; g < queries; ++g) {
            float* row = &scores[std::size_t{g} * units];
            simd::scale(detail::softmax_row(row, units, scale), row, units);
        }
        group_max::apply(scores, queries, units);
    }
};

struct none {
    static constexpr bool linear = false;
    static constexpr bool per_query = true;
    static void apply(std::span<float>, std::uint32_t, std::uint32_t, float) noexcept {} ///< rows stay
};

/// The heads of a lane choose each for themselves. With more than 64 queries a lane they choose together.
template <class Reduce> struct by_head : Reduce {
    static constexpr bool linear = false;
    static constexpr bool per_head = true;
};

} // namespace reduce

/// What becomes of the unit that is more than what is left of the budget.
enum class overshoot : bool { skipped, cut_off };

template <class Reduce, query Source = query::current, overshoot Last = overshoot::skipped> struct topk {
    static constexpr std::string_view name = "topk";
    static constexpr engine_input needs = engine_input::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    static constexpr bool truncates = Last == overshoot::cut_off;
    static_assert(
        !truncates || requires { requires Reduce::per_query; },
        "[kvtl] selector: topk cuts units off where every query chooses for itself (reduce::none)");
    using reduction = Reduce;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}

        /// Writes the chosen units and returns how many they are: by their numbers where all units have one size and none
        /// is cut off, else best first. `out` has room for min(U, attend_tokens) units.
        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            const auto units = static_cast<std::uint32_t>(in.score.size());
            const std::uint32_t fixed = in.fixed_entries();
            std::uint32_t left = in.budget, chosen = 0;
            // A first look at as many units as are likely to fit (exactly so many where all have one size).
            const std::uint32_t first =
                std::min(units, fixed != 0 ? (in.budget + (truncates ? fixed - 1 : 0)) / fixed
                                           : std::max(16U, in.budget / 8));
            if (first == 0) return 0;
            if (fixed != 0 && !truncates) { // all of them fit, so that their ranks do not matter
                static_cast<void>(
                    simd::top_k_by_index(in.score.data(), units, first, in.order.data(), in.scratch));
                for (std::uint32_t i = 0; i < first; ++i) out[i] = {.unit = in.order[i]};
                return first;
            }
            static_cast<void>(simd::top_k(in.score.data(), units, first, in.order.data(), in.scratch));
            for (std::uint32_t i = 0; i < first && left > 0; ++i) take(in, in.order[i], left, out, chosen);
            if (fixed != 0) return chosen;
            // Then only at those that still fit: a few, as what is left is less than most units have.
            std::uint64_t seen =
                simd::top_k_key<simd::default_arch>(in.score[in.order[first - 1]], in.order[first - 1]);
            for (std::uint32_t most = 16; left > 0; most *= 4) {
                std::uint64_t* const keys = in.scratch.data();
                const std::uint32_t largest = truncates ? std::numeric_limits<std::uint32_t>::max() : left;
                std::uint32_t small = 0, candidates = 0;
                for (std::uint32_t u = 0; u < units; ++u) { // written always, kept if it fits: no branch
                    keys[small] = u;
                    small += in.entries(u) - 1U < largest ? 1 : 0; // none is more than any
                }
                for (std::uint32_t i = 0; i < small; ++i) {
                    const auto u = static_cast<std::uint32_t>(keys[i]);
                    keys[candidates] = simd::top_k_key<simd::default_arch>(in.score[u], u);
                    candidates += keys[candidates] < seen ? 1 : 0;
                }
                if (candidates == 0) break;
                const std::uint32_t ranked = std::min(candidates, most);
                simd::select_best<simd::default_arch>(keys, candidates, ranked);
                std::sort(keys, keys + ranked, simd::better_key<simd::default_arch>{});
                for (std::uint32_t i = 0; i < ranked && left > 0; ++i)
                    take(in, simd::top_k_index(keys[i]), left, out, chosen);
                seen = keys[ranked - 1];
            }
            return chosen;
        }

      private:
        /// Chooses unit u if it fits, or what fits of it.
        static void take(const choice_input& in, std::uint32_t u, std::uint32_t& left,
                         std::span<chosen_unit> out, std::uint32_t& chosen) noexcept {
            const std::uint32_t entries = in.entries(u);
            if (entries == 0 || (!truncates && entries > left)) return;
            const std::uint32_t taken = std::min(entries, left);
            out[chosen] = {.unit = u};
            if (taken < entries) out[chosen].first = static_cast<std::uint16_t>(taken);
            ++chosen;
            left -= taken;
        }
    };
};

}} // namespace kvtl::v0
