// threshold against its definition in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_threshold.hpp>

#include "support/units_above_bar.hpp"

#include <cmath>

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

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
