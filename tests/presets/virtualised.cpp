// SPDX-License-Identifier: MIT
#include <kvtl/presets/virtualised.hpp>

#include "support/size_knob.hpp"

using namespace kvtl_test;

namespace {
/// Deep enough that layers take turns.
template <class Preset> void equals_dense_in_turns() {
    for (const bool smallest : {false, true})
        run_scenario<cache_of<Preset>>({.shape = {4, 4, 2, 64},
                                        .prompt = 400,
                                        .chunk = 150,
                                        .decode = 60,
                                        .turn = 30,
                                        .turn_decode = 10,
                                        .smallest = smallest});
    run_scenario<cache_of<Preset>>({.shape = {3, 4, 2, 64}, .decode = 380, .smallest = true});
}
} // namespace

TEST_CASE("dynakv_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::dynakv_virtualised>();
}

TEST_CASE("dynakv_estimate_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::dynakv_estimate_virtualised>();
}

TEST_CASE("clusterkv_virtualised with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_turns<kvtl::presets::clusterkv_virtualised>();
}
