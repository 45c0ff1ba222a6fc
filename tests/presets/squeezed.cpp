// Squeezed Attention: the threshold that a prompt settles, and what follows from it.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/squeezed.hpp>

#include "support/size_knob.hpp"

using namespace kvtl_test;

TEST_CASE("squeezed with the budget for everything is dense attention over f16 entries") {
    cache_of<kvtl::presets::squeezed>::config c;
    c.selector.kept = 1; // otherwise the threshold leaves some out
    equals_dense_in_short<cache_of<kvtl::presets::squeezed>>(c);
}
