// mean_value: the mass that units would have had goes to the mean value of all entries in units.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/estimate_mean_value.hpp>

#include "contracts/estimator.hpp"

namespace estimate_mean_value_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::estimator_suite;

TEST_CASE("mean_value") {
    estimator_contract<mean_value>([](const auto& x, std::uint32_t head, std::uint32_t g, std::uint32_t u) {
        return std::optional(stand_in{x.mean_logit(head, g, u), x.mean_value(head)});
    });
}

TEST_CASE("mean_value: with nothing attended the output is the mean value, whatever the query") {
    lane_of_units<mean_value> x({2, 64, 33}, false);
    const auto mean = x.mean_value(0);
    const auto out = x.output(0);
    for (std::uint32_t g = 0; g < 2; ++g)
        for (std::size_t d = 0; d < 64; ++d)
            CHECK(std::fabs(static_cast<double>(out[g * 64 + d]) - mean[d]) < 1e-6);
}

} // namespace estimate_mean_value_test
