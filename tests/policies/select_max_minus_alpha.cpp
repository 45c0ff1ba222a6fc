// max_minus_alpha against its definition in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_max_minus_alpha.hpp>

#include "support/units_above_bar.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace select_max_minus_alpha_test {

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

TEST_CASE("max_minus_alpha") {
    using selector = max_minus_alpha<reduce::group_max>;
    static_assert(selector_for<selector> && selector::source == query::current);
    static_assert(max_minus_alpha<reduce::group_mean, query::predicted>::source == query::predicted);
    std::size_t all = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const units x =
            random_units_of(1 + seed * 7, seed, seed % 3 == 0 ? 0 : static_cast<std::uint32_t>(seed % 5));
        for (const float alpha : {0.0F, 1.0F, 4.0F, 1000.0F})
            for (const std::uint32_t heads : {1U, 2U})
                for (const std::uint32_t budget : {0U, 1U, 40U, 100000U}) {
                    const selector::state s({alpha, heads}, model());
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
    CHECK(choose(selector::state({}, model()), units{}, 10).empty());
}

TEST_CASE("what scores more than a bar keeps its order") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> score = {3, 1, nan, 2, 5, 2.5F};
    std::vector<chosen_unit> chosen = {{.unit = 4}, {.unit = 2}, {.unit = 0},
                                       {.unit = 3}, {.unit = 5}, {.unit = 1}};
    REQUIRE(keep_above(2, score, chosen) == 3);
    for (const auto& [place, unit] : {std::pair{0U, 4U}, {1U, 0U}, {2U, 5U}})
        CHECK(chosen[place].unit == unit);
    CHECK(keep_above(5, score, chosen) == 0);
    CHECK(keep_above(0, score, {}) == 0);
}

} // namespace select_max_minus_alpha_test
