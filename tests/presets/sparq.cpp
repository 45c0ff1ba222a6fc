// SPDX-License-Identifier: MIT
#include <kvtl/presets/sparq.hpp>

#include "support/size_knob.hpp"

namespace sparq_test {

using namespace kvtl_test;

TEST_CASE("sparq with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::sparq>>();
}

TEST_CASE("fasa with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::fasa>>();
}

TEST_CASE("sparq: the size knob, keys of 8 bits; the coarsest setting is exact as well") {
    CHECK(every_setting<kvtl::presets::sparq>().size() > 1);
    coarsest_equals_dense<kvtl::presets::sparq>();
}

TEST_CASE("fasa: the size knob, fewer pairs; the coarsest setting is exact as well") {
    CHECK(every_setting<kvtl::presets::fasa>().size() > 1);
    coarsest_equals_dense<kvtl::presets::fasa>();
}

} // namespace sparq_test
