// SPDX-License-Identifier: MIT
#include <kvtl/presets/infllm.hpp>

#include "support/size_knob.hpp"

namespace infllm_test {

using namespace kvtl_test;

TEST_CASE("infllm with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::infllm>>();
}

} // namespace infllm_test
