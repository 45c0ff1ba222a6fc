// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "support/size_knob.hpp"

namespace virtualised_test {

using namespace kvtl_test;

namespace {
/// Deep enough that layers take turns.
template <class Preset>
void equals_dense_in_turns(const typename cache_of<Preset>::config& c = {}, double tolerance = exact) {
    for (const bool smallest : {false, true})
        run_scenario<cache_of<Preset>>({.shape = {4, 4, 2, 64},
                                        .prompt = 400,
                                        .chunk = 150,
                                        .decode = 60,
                                        .turn = 30,
                                        .turn_decode = 10,
                                        .smallest = smallest},
                                       c, tolerance);
    run_scenario<cache_of<Preset>>({.shape = {3, 4, 2, 64}, .decode = 380, .smallest = true}, c, tolerance);
}
} // namespace

TEST_CASE("each layer counts its own steps, and gives up what its last ones neither chose nor updated") {
    using cache_type = cache_of<kvtl::presets::dynakv_virtualised>;
    constexpr kvtl::shape deep{4, 8, 4, 64};
    constexpr std::uint32_t prompt = 600, steps = 40, hot = 1;
    typename cache_type::config c;
    c.shape = deep;
    c.max_tokens = prompt + steps;
    c.attend_tokens = 96;
    REQUIRE(c.schedule.hot_steps == hot);
    c.memory_bytes = std::size_t{8} << 20; // nothing has to leave for want of frames
    auto cache = open_cache<cache_type>(c);
    const drift data(deep, c.max_tokens, 41);
    reader<cache_type> one(cache, data, 0);
    one.prefill(prompt);
    one.decode(steps);
    require_ok(cache.before_query(one.id(), 0)); // layer 0 is on its way back
    auto& store = kvtl::shard_access::of(cache, 0).store();
    std::uint32_t given_up = 0;
    for (std::uint32_t layer = 0; layer < deep.layers; ++layer) {
        CAPTURE(layer);
        const auto& frames = store.pools()[layer];
        CHECK(frames.steps() == steps);
        std::uint32_t resident = 0, stale = 0;
        for (std::uint32_t f = 0; f < frames.size(); ++f) {
            if (!frames[f].admitted) continue;
            ++resident;
            // A layer read back now looks at its last steps; others did so before their last step.
            stale += frames.steps() - frames[f].used > hot + 1 ? 1U : 0U;
        }
        CHECK(resident > 0);
        CHECK(stale == 0);
        for (std::uint32_t head = 0; head < deep.kv_heads; ++head)
            given_up += store.at(layer * deep.kv_heads + head).state().units;
        given_up -= resident;
    }
    CHECK(given_up > 0);
}

TEST_CASE("dynakv_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::dynakv_virtualised>();
}

TEST_CASE("dynakv_estimate_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::dynakv_estimate_virtualised>();
}

TEST_CASE("dynakv_two_level_int8_virtualised with the budget for everything is dense attention within its "
          "codec's error") {
    using preset = kvtl::presets::dynakv_two_level_int8_virtualised;
    typename cache_of<preset>::config c;
    c.index.least_units = 0; // few units have a coarse level, too
    c.index.units_per_block = 4;
    equals_dense_in_turns<preset>(c, 2e-2);
}

TEST_CASE("clusterkv_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::clusterkv_virtualised>();
}

} // namespace virtualised_test
