// SPDX-License-Identifier: MIT
#include <kvtl/presets/clusterkv.hpp>

#include "support/size_knob.hpp"

namespace clusterkv_test {

using namespace kvtl_test;

TEST_CASE("clusterkv with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::clusterkv>>();
}

TEST_CASE(
    "clusterkv: every query head takes clusters for itself, the last one in part; a batch makes several") {
    using preset = kvtl::presets::clusterkv;
    CHECK(preset::selector::reduction::per_query);
    CHECK(preset::selector::truncates);
    const cache_of<preset>::config c;
    CHECK(c.clusterer.smallest_batch * c.clusterer.window_clusters / c.clusterer.window >= 2);
}

} // namespace clusterkv_test
