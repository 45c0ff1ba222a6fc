// max_minus_alpha and threshold against their definitions in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_max_minus_alpha.hpp>
#include <kvtl/policies/select_threshold.hpp>

#include "contracts/selector.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

using namespace kvtl;

namespace {

constexpr std::uint32_t dim = 64;
using model = geometry<shape{.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = dim}>;

struct units {
    std::vector<float> score;
    std::vector<unit_record> unit;
};
units random_units_of(std::size_t n, std::uint64_t seed) {
    units x{oracle::normal_values<float>(n, seed, 20.0), std::vector<unit_record>(n)};
    oracle::generator random(seed + 1);
    for (unit_record& u : x.unit) u.entries = static_cast<std::uint32_t>(random.below(12));
    return x;
}
std::vector<std::uint32_t> choose(const auto& state, const units& x, std::uint32_t budget) {
    std::vector<std::uint32_t> order(x.score.size()), result;
    std::vector<std::uint64_t> scratch(x.score.size());
    std::vector<chosen_unit> out(x.score.size());
    const units_view lane{.unit = x.unit.data(), .count = static_cast<std::uint32_t>(x.unit.size())};
    const std::uint32_t n = state.choose({x.score, lane, budget, order, scratch}, out);
    for (std::uint32_t i = 0; i < n; ++i) result.push_back(out[i].unit);
    return result;
}
/// Units that pass, best first, while the budget lasts.
std::vector<std::uint32_t> naive(const units& x, std::uint32_t budget, const auto& passes) {
    std::vector<std::uint32_t> order(x.score.size()), result;
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return x.score[a] > x.score[b]; });
    for (const std::uint32_t u : order)
        if (passes(u) && x.unit[u].entries != 0 && x.unit[u].entries <= budget) {
            budget -= x.unit[u].entries;
            result.push_back(u);
        }
    return result;
}

} // namespace

TEST_CASE("max_minus_alpha") {
    using selector = max_minus_alpha<reduce::group_max>;
    static_assert(selector_for<selector, model> && selector::source == query::current);
    static_assert(max_minus_alpha<reduce::group_mean, query::predicted>::source == query::predicted);
    std::size_t all = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const units x = random_units_of(1 + seed * 7, seed);
        for (const float alpha : {0.0F, 1.0F, 4.0F, 1000.0F})
            for (const std::uint32_t heads : {1U, 2U})
                for (const std::uint32_t budget : {0U, 1U, 40U, 100000U}) {
                    const selector::state<model> s({alpha, heads}, *model::from({}));
                    const double bar =
                        static_cast<double>(*std::max_element(x.score.begin(), x.score.end())) -
                        static_cast<double>(alpha) * std::sqrt(dim) * heads;
                    const auto got = choose(s, x, budget);
                    CHECK(got ==
                          naive(x, budget, [&](auto u) { return static_cast<double>(x.score[u]) > bar; }));
                    all += got.size();
                }
    }
    CHECK(all > 10000);
    CHECK(choose(selector::state<model>({}, *model::from({})), units{}, 10).empty());
}

TEST_CASE("threshold") {
    using selector = threshold<reduce::group_mean>;
    static_assert(selector_for<selector, model>);
    std::size_t some = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const units x = random_units_of(1 + seed * 7, seed);
        for (const float share : {1e-9F, 1e-3F, 1e-2F, 0.5F})
            for (const std::uint32_t heads : {1U, 3U})
                for (const std::uint32_t budget : {0U, 1U, 40U, 100000U}) {
                    const selector::state<model> s({share, heads}, *model::from({}));
                    const auto weight = [&](std::uint32_t u) {
                        return std::exp(static_cast<double>(x.score[u]) / std::sqrt(dim) / heads);
                    };
                    double sum = 0;
                    for (std::uint32_t u = 0; u < x.score.size(); ++u) sum += x.unit[u].entries * weight(u);
                    const auto passes = [&](std::uint32_t u) {
                        return weight(u) > static_cast<double>(share) * sum;
                    };
                    const auto got = choose(s, x, budget);
                    CHECK(got == naive(x, budget, passes));
                    some += got.size();
                }
    }
    CHECK(some > 10000);
    CHECK(choose(selector::state<model>({}, *model::from({})), units{}, 10).empty());
}
