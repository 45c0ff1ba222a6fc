// SPDX-License-Identifier: MIT
#include <kvtl/presets/retroinfer.hpp>

#include "support/size_knob.hpp"

namespace retroinfer_test {

using namespace kvtl_test;

TEST_CASE("retroinfer with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::retroinfer>>();
}

} // namespace retroinfer_test
