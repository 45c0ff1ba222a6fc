// SPDX-License-Identifier: MIT
#include <kvtl/presets/quest.hpp>

#include "support/size_knob.hpp"

namespace quest_test {

using namespace kvtl_test;

TEST_CASE("quest with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_of<kvtl::presets::quest>>();
}

TEST_CASE("quest: the size knob, longer pages up to 128; the coarsest setting is exact as well") {
    CHECK(every_setting<kvtl::presets::quest>().size() > 1);
    coarsest_equals_dense<kvtl::presets::quest>();
}

TEST_CASE("quest: every query head chooses pages for itself") {
    CHECK(kvtl::presets::quest::selector::reduction::per_query);
    CHECK(cache_of<kvtl::presets::quest>::config{}.clusterer.group_tokens == 16);
}

} // namespace quest_test
