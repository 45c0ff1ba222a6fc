// original: nothing moves, nothing is asked for.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/position_original.hpp>

#include "contracts/position.hpp"

namespace position_original_test {

TEST_CASE("original") {
    kvtl_test::position_contract<kvtl::original>({});
}

} // namespace position_original_test
