// original: nothing moves, nothing is asked for.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/position_original.hpp>

#include "contracts/position.hpp"

TEST_CASE("original") {
    kvtl_test::position_contract<kvtl::original>({});
}
