// random_units draws every unit equally often and none twice.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_random_units.hpp>

#include "contracts/selector.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace select_random_units_test {

using namespace kvtl;

namespace {

std::vector<std::uint32_t> draw(std::uint64_t seed, std::uint32_t units, std::uint32_t budget) {
    const random_units::state s({seed}, {});
    std::vector<chosen_unit> out(units);
    const std::uint32_t n = s.choose({{}, {.count = units, .max_entries = 1}, budget}, out);
    std::vector<std::uint32_t> result;
    for (std::uint32_t i = 0; i < n; ++i) result.push_back(out[i].unit);
    return result;
}

} // namespace

TEST_CASE("random_units keeps a selector's promises") {
    static_assert(selector_for<random_units>);
    kvtl_test::selector_suite::keeps_its_promises<random_units>();
}

TEST_CASE("every unit comes once, in another order for another seed or another number of units") {
    for (const std::uint32_t units : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 64U, 100U, 1000U, 4097U}) {
        auto all = draw(7, units, units);
        std::sort(all.begin(), all.end());
        REQUIRE(all.size() == units);
        for (std::uint32_t u = 0; u < units; ++u) REQUIRE(all[u] == u);
    }
    CHECK(draw(1, 100, 100) == draw(1, 100, 100));
    CHECK(draw(1, 100, 100) != draw(2, 100, 100));
    CHECK(draw(1, 101, 10) != draw(1, 100, 10));
}

TEST_CASE("all units, and pairs of them, are drawn equally often") {
    constexpr std::uint32_t units = 20, budget = 5, draws = 8000;
    std::vector<double> single(units), pair(units * units);
    for (std::uint32_t seed = 0; seed < draws; ++seed) {
        const auto drawn = draw(seed, units, budget);
        REQUIRE(drawn.size() == budget);
        for (const std::uint32_t a : drawn) {
            single[a] += 1;
            for (const std::uint32_t b : drawn)
                if (a != b) pair[a * units + b] += 1;
        }
    }
    // Expected 2,000 and 421, with standard deviations of 39 and 20: five of them to either side.
    for (const double n : single) CHECK(std::fabs(n - 2000.0) < 195.0);
    for (std::uint32_t a = 0; a < units; ++a)
        for (std::uint32_t b = a + 1; b < units; ++b) CHECK(std::fabs(pair[a * units + b] - 421.0) < 100.0);
}

} // namespace select_random_units_test
