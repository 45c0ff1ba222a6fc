// What tests of selectors share that take every unit above a bar: units with random scores and sizes, and the
// naive choice among those that pass. SPDX-License-Identifier: MIT
#pragma once

#include "contracts/selector.hpp"

#include <algorithm>
#include <numeric>

namespace kvtl_test { namespace selector_suite { namespace bar {

inline constexpr std::uint32_t dim = 64;
inline geometry model() {
    return *geometry::from({.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = dim});
}

struct units {
    std::vector<float> score;
    std::vector<unit_record> unit;
    std::uint32_t fixed = 0; ///< the size of all units, which a lane then has no records of

    [[nodiscard]] units_view lane() const {
        return {.unit = fixed != 0 ? nullptr : unit.data(),
                .count = static_cast<std::uint32_t>(unit.size()),
                .max_entries = fixed != 0 ? fixed : 12};
    }
};
inline units random_units_of(std::size_t n, std::uint64_t seed, std::uint32_t fixed = 0) {
    units x{oracle::normal_values<float>(n, seed, 20.0), std::vector<unit_record>(n), fixed};
    oracle::generator random(seed + 1);
    for (unit_record& u : x.unit)
        u.entries = fixed != 0 ? fixed : static_cast<std::uint32_t>(random.below(12));
    return x;
}
inline std::vector<std::uint32_t> choose(const auto& state, const units& x, std::uint32_t budget) {
    std::vector<std::uint32_t> order(x.score.size()), result;
    std::vector<std::uint64_t> scratch(x.score.size());
    std::vector<chosen_unit> out(x.score.size());
    const std::uint32_t n = state.choose({x.score, x.lane(), budget, order, scratch}, out);
    for (std::uint32_t i = 0; i < n; ++i) result.push_back(out[i].unit);
    std::sort(result.begin(), result.end());
    return result;
}
/// Units that pass, the best while the budget lasts, by their numbers.
inline std::vector<std::uint32_t> naive(const units& x, std::uint32_t budget, const auto& passes) {
    std::vector<std::uint32_t> order(x.score.size()), result;
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x.score[a] > x.score[b]; });
    for (const std::uint32_t u : order)
        if (passes(u) && x.unit[u].entries != 0 && x.unit[u].entries <= budget) {
            budget -= x.unit[u].entries;
            result.push_back(u);
        }
    std::sort(result.begin(), result.end());
    return result;
}

}}} // namespace kvtl_test::selector_suite::bar
