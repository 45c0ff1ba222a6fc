// SPDX-License-Identifier: MIT
#include <kvtl/presets/pqcache.hpp>

#include "support/size_knob.hpp"

namespace pqcache_test {

using namespace kvtl_test;

TEST_CASE("pqcache with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::pqcache>>();
}

} // namespace pqcache_test
