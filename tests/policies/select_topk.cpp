// topk against double precision: rank, take whole units, skip what would overshoot; ties to the lower index.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_topk.hpp>

#include "contracts/selector.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace select_topk_test {

using namespace kvtl;

namespace {

std::vector<std::uint32_t> take_in_order(const std::vector<double>& score,
                                         const std::vector<unit_record>& unit, std::uint32_t budget) {
    std::vector<std::uint32_t> order(score.size()), chosen;
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return score[a] > score[b]; });
    for (const std::uint32_t u : order)
        if (unit[u].entries > 0 && unit[u].entries <= budget) {
            budget -= unit[u].entries;
            chosen.push_back(u);
        }
    return chosen;
}

/// Sums over the lane's heads what `reduce` makes of a head's queries.
template <class Instance, class Reduce>
std::vector<std::uint32_t> naive(const Instance& x, std::uint32_t budget, const Reduce& reduce) {
    std::vector<double> score(x.unit().size(), 0.0);
    for (std::uint32_t u = 0; u < score.size(); ++u)
        for (std::uint32_t h = 0; h < x.model().lane_heads; ++h) {
            std::vector<double> of_query;
            for (std::uint32_t g = 0; g < x.model().group; ++g) of_query.push_back(x.score(h, g, u));
            score[u] += reduce(of_query);
        }
    auto chosen = take_in_order(score, x.unit(), budget);
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

double mean(const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
double largest(const std::vector<double>& x) {
    return *std::max_element(x.begin(), x.end());
}

/// One call of choose() with scores as they are.
std::vector<std::uint32_t> choose(const std::vector<float>& score, const std::vector<unit_record>& unit,
                                  std::uint32_t budget) {
    std::vector<std::uint32_t> order(score.size()), chosen;
    std::vector<std::uint64_t> scratch(score.size());
    std::vector<chosen_unit> out(score.size());
    const topk<reduce::group_mean>::state s;
    const units_view lane{.unit = unit.data(), .count = static_cast<std::uint32_t>(unit.size())};
    const std::uint32_t n = s.choose({score, lane, budget, order, scratch}, out);
    for (std::uint32_t i = 0; i < n; ++i) chosen.push_back(out[i].unit);
    return chosen;
}

} // namespace

TEST_CASE("topk<group_mean>") {
    kvtl_test::selector_contract<topk<reduce::group_mean>>(
        [](const auto& x, std::uint32_t budget) { return naive(x, budget, mean); });
}

TEST_CASE("topk<group_max>") {
    kvtl_test::selector_contract<topk<reduce::group_max>>(
        [](const auto& x, std::uint32_t budget) { return naive(x, budget, largest); });
}

TEST_CASE("random scores, sizes and budgets") {
    oracle::generator random(7);
    for (int round = 0; round < 400; ++round) {
        const std::size_t units = random.below(900);
        std::vector<float> score(units);
        std::vector<unit_record> unit(units);
        const std::size_t levels = 1 + random.below(60), largest_unit = 1 + random.below(80);
        for (std::size_t u = 0; u < units; ++u) {
            score[u] = static_cast<float>(random.below(levels)) - 10.0F;
            unit[u].entries = static_cast<std::uint32_t>(random.below(largest_unit + 1));
        }
        const auto budget = static_cast<std::uint32_t>(random.below(1200));
        const std::vector<double> exact(score.begin(), score.end());
        CHECK(choose(score, unit, budget) == take_in_order(exact, unit, budget));
    }
}

TEST_CASE("a unit that would overshoot is skipped, a later one that fits is taken") {
    std::vector<unit_record> unit(4);
    unit[0].entries = 6;
    unit[1].entries = 5;
    unit[2].entries = 4;
    unit[3].entries = 4;
    CHECK(choose({4, 3, 2, 1}, unit, 10) == std::vector<std::uint32_t>{0, 2});
    CHECK(choose({1, 1, 1, 1}, unit, 15) == std::vector<std::uint32_t>{0, 1, 2});
    CHECK(choose({4, 3, 2, 1}, unit, 3).empty());
}

TEST_CASE("small units far down the ranking are found when all before them are too large") {
    std::vector<unit_record> unit(1000);
    std::vector<float> score(1000);
    for (std::uint32_t u = 0; u < 1000; ++u) {
        unit[u].entries = u == 997 ? 3 : 50;
        score[u] = -static_cast<float>(u);
    }
    CHECK(choose(score, unit, 20) == std::vector<std::uint32_t>{997});
}

namespace {

/// How many entries of a unit a query attends.
struct part {
    std::uint32_t unit, entries;
};
/// Units in the order of one query's scores, the last one as far as the budget goes.
std::vector<part> filled(const std::vector<double>& score, const std::vector<unit_record>& unit,
                         std::uint32_t budget) {
    std::vector<std::uint32_t> order(score.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return score[a] > score[b]; });
    std::vector<part> parts;
    for (const std::uint32_t u : order)
        if (const std::uint32_t n = std::min(unit[u].entries, budget); n > 0) {
            parts.push_back({u, n});
            budget -= n;
        }
    return parts;
}

} // namespace

TEST_CASE(
    "cut_off: every query fills its budget to the last entry; of two that cut a unit off the lesser counts") {
    using selector = topk<reduce::none, query::current, overshoot::cut_off>;
    kvtl_test::selector_suite::each_case<selector>([](auto& x, std::uint32_t budget) {
        if (x.model().lane_heads > 1) return; // reduce::none: lanes of one head
        std::vector<std::uint64_t> mask(x.unit().size()), cut(x.unit().size());
        std::vector<std::uint32_t> first(x.unit().size());
        for (std::uint32_t g = 0; g < x.model().group; ++g) {
            std::vector<double> score;
            for (std::uint32_t u = 0; u < x.unit().size(); ++u) score.push_back(x.score(0, g, u));
            std::uint32_t attended = 0, all = 0;
            for (const part& p : filled(score, x.unit(), budget)) {
                attended += p.entries;
                mask[p.unit] |= std::uint64_t{1} << g;
                if (p.entries == x.unit()[p.unit].entries) continue;
                first[p.unit] = cut[p.unit] == 0 ? p.entries : std::min(first[p.unit], p.entries);
                cut[p.unit] |= std::uint64_t{1} << g;
            }
            for (const unit_record& u : x.unit()) all += u.entries;
            REQUIRE(attended == std::min(budget, all));
        }
        const auto choice = x.choice(budget);
        std::size_t i = 0;
        for (std::uint32_t u = 0; u < x.unit().size(); ++u) {
            if (mask[u] == 0) continue;
            REQUIRE(i < choice.size());
            CHECK(choice[i].unit == u);
            CHECK(choice[i].mask == mask[u]);
            CHECK(choice[i].cut == cut[u]);
            CHECK(choice[i].first == first[u]);
            ++i;
        }
        CHECK(i == choice.size());
    });
}

TEST_CASE("by_head: every head of a lane has the whole budget for its own best units") {
    kvtl_test::selector_suite::each_case<topk<reduce::by_head<reduce::group_max>>>(
        [](auto& x, std::uint32_t budget) {
            if (x.model().lane_heads == 1) {
                CHECK(x.choose(budget) == naive(x, budget, largest));
                return;
            }
            std::vector<std::uint64_t> mask(x.unit().size());
            for (std::uint32_t h = 0; h < x.model().lane_heads; ++h) {
                std::vector<double> score;
                for (std::uint32_t u = 0; u < x.unit().size(); ++u) {
                    std::vector<double> of_query;
                    for (std::uint32_t g = 0; g < x.model().group; ++g) of_query.push_back(x.score(h, g, u));
                    score.push_back(largest(of_query));
                }
                for (const std::uint32_t u : take_in_order(score, x.unit(), budget))
                    for (std::uint32_t g = 0; g < x.model().group; ++g)
                        mask[u] |= std::uint64_t{1} << (h * x.model().group + g);
            }
            std::vector<std::uint64_t> got(x.unit().size());
            for (const chosen_unit& c : x.choice(budget)) {
                CHECK(c.cut == 0);
                got[c.unit] = c.mask;
            }
            CHECK(got == mask);
        });
}

} // namespace select_topk_test
