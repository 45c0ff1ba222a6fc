// uniform: every head of every layer keeps the mean.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_uniform.hpp>

#include "contracts/budget.hpp"

namespace budget_uniform_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

TEST_CASE("uniform keeps the promises of a budget") {
    budget_contract<kvtl::uniform>();
}

TEST_CASE("uniform: everybody keeps the mean, or all of a short prompt") {
    const kvtl::budget_limits limits{3, 2, 10, 8, 100};
    CHECK(divide<kvtl::uniform>({}, limits, 100, 1).kept() == std::vector<std::uint32_t>(6, 10));
    CHECK(divide<kvtl::uniform>({}, limits, 7, 1).kept() == std::vector<std::uint32_t>(6, 7));
}

} // namespace budget_uniform_test
