// SPDX-License-Identifier: MIT
#include <kvtl/presets/flexgen.hpp>

#include "support/size_knob.hpp"

namespace flexgen_test {

using namespace kvtl_test;

TEST_CASE("flexgen with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::flexgen>>();
}

TEST_CASE("flexgen attends everything, whatever the budget") {
    using cache_type = cache_of<kvtl::presets::flexgen>;
    const kvtl::shape small{2, 4, 2, 64};
    const drift data(small, 400, 3);
    auto cache = open_cache<cache_type>(
        {.shape = small, .max_tokens = 400, .memory_bytes = 4 << 20, .attend_tokens = 64});
    reader<cache_type> one(cache, data);
    one.prefill(350);
    one.decode(30);
    CHECK(one.error() < exact);
}

} // namespace flexgen_test
