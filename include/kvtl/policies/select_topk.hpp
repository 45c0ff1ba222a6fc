// Selector: the units with the highest scores, whole units in score order until the budget of entries is used
// up; a unit that would overshoot is skipped (DynaKV §4.1: top-k clusters by query-centroid similarity).
//
// The reduction says how the scores of the queries that share KV heads become one score per unit. Published
// systems differ in nothing but this, so it is a template argument:
//
//   reduce::group_mean   DynaKV here: one dot product with the mean query
//
//   reduce::group_max    a unit counts as much as its best query
//   reduce::softmax_sum  logits are soft-maxed over all units first (KVSwap; ShadowKV takes their maximum)
//   reduce::softmax_max
//   reduce::none         every query chooses for itself (Quest, ClusterKV); the step reads the union
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/signals.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/simd/topk.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <cmath>
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
};

} // namespace reduce

template <class Reduce, query Source = query::current> struct topk {
    static constexpr std::string_view name = "topk";
    static constexpr signal needs = signal::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    using reduction = Reduce;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    template <class Geometry> class state {
      public:
        state() = default;
        state(const config&, const Geometry&) noexcept {}

        /// Writes the chosen units in score order and returns their number; `out` has room for min(U,
        /// attend_tokens) units.
        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            const auto units = static_cast<std::uint32_t>(in.score.size());
            std::uint32_t left = in.budget, chosen = 0;
            // A first look at as many units as are likely to fit (exactly so many where all have one size);
            // only skipped ones make a second look necessary.
            std::uint32_t ranked =
                std::min(units, in.fixed_entries() != 0 ? std::max(1U, in.budget / in.fixed_entries())
                                                        : std::max<std::uint32_t>(16, in.budget / 8));
            for (std::uint32_t seen = 0; left > 0 && seen < units;) {
                static_cast<void>(simd::top_k(in.score.data(), units, ranked, in.order.data(), in.scratch));
                for (; seen < ranked && left > 0; ++seen) {
                    const std::uint32_t u = in.order[seen];
                    const std::uint32_t entries = in.entries(u);
                    if (entries == 0 || entries > left) continue;
                    out[chosen++] = {u, ~std::uint64_t{0}};
                    left -= entries;
                }
                ranked = std::min(units, ranked * 4);
            }
            return chosen;
        }
    };
};

}} // namespace kvtl::v0
