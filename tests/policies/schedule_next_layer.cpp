// next_layer: reads while the layer before computes; every selector.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/schedule_next_layer.hpp>

#include "contracts/schedule.hpp"

namespace schedule_next_layer_test {

TEST_CASE("next_layer") {
    kvtl_test::schedule_contract<kvtl::next_layer>(true);
}

} // namespace schedule_next_layer_test
