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

TEST_CASE("quest_top_p: with the share 1 it is quest, with a smaller one it reads less") {
    using cache_t = cache_of<kvtl::presets::quest_top_p>;
    cache_t::config c;
    c.selector.p = 1;
    equals_dense_in_short<cache_t>(c);
    const drift data({2, 4, 2, 32}, 500, 17);
    const auto opened = [&](float p) {
        cache_t::config some;
        some.shape = data.shape();
        some.max_tokens = 500;
        some.attend_tokens = 300;
        some.memory_bytes = std::size_t{8} << 20;
        some.selector.p = p;
        auto cache = open_cache<cache_t>(some);
        reader<cache_t> one(cache, data, 0);
        one.prefill(400);
        one.decode(50);
        return cache.stats().choosing.opened;
    };
    const auto all = opened(1), most = opened(0.9F), half = opened(0.5F);
    CHECK(all > most);
    CHECK(most > half);
    CHECK(half > 0);
}

} // namespace quest_test
