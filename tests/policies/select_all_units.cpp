// all_units: every unit, in index order, whatever the budget.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_all_units.hpp>

#include "contracts/selector.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace select_all_units_test {

TEST_CASE("all_units") {
    kvtl_test::selector_contract<kvtl::all_units>([](const auto& x, std::uint32_t) {
        std::vector<std::uint32_t> everything(x.unit().size());
        std::iota(everything.begin(), everything.end(), 0U);
        return everything;
    });
}

} // namespace select_all_units_test
