// Engine inputs: sets, declarations with defaults, and the union a preset needs.
// SPDX-License-Identifier: MIT
#include <kvtl/engine_inputs.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/slots/preset.hpp>

#include <doctest/doctest.h>

#include <string>

namespace kvtl_test {

using namespace kvtl;
using kvtl::engine_input; // rather than the system's function

namespace {

struct silent {};
struct demanding {
    static constexpr engine_input needs = engine_input::k_pre | engine_input::x;
    static constexpr feedback reads_mass = feedback::full;
    static constexpr bool layer_wide_only = true;
};
struct demanding_index : centroid {
    static constexpr engine_input needs = engine_input::calibration;
};
struct calibrated : presets::dynakv {
    using index = demanding_index;
};

} // namespace

TEST_CASE("inputs are sets") {
    constexpr engine_input set = engine_input::q | engine_input::k_pre;
    static_assert(contains(set, engine_input::q) && contains(set, engine_input::nothing) &&
                  contains(set, set));
    static_assert(!contains(set, engine_input::k) && !contains(set, engine_input::q | engine_input::k));
    static_assert((set & engine_input::q) == engine_input::q &&
                  (set & engine_input::v) == engine_input::nothing);
    static_assert(without(set, engine_input::q) == engine_input::k_pre &&
                  without(set, engine_input::v) == set);
    CHECK(engine_inputs<>::value == engine_input::nothing);
    CHECK(engine_inputs<engine_input::q, engine_input::x>::value == (engine_input::q | engine_input::x));
    CHECK(default_engine_inputs::value == (engine_input::q | engine_input::k | engine_input::v));
}

TEST_CASE("what a policy does not declare it does not need") {
    CHECK(needs_of<silent>() == engine_input::nothing);
    CHECK(feedback_of<silent>() == feedback::unused);
    CHECK_FALSE(layer_wide_only<silent>);
    CHECK(needs_of<demanding>() == (engine_input::k_pre | engine_input::x));
    CHECK(feedback_of<demanding>() == feedback::full);
    CHECK(layer_wide_only<demanding>);
}

TEST_CASE("a preset needs the union, and the first input that is missing is named") {
    CHECK(needed_inputs<presets::full>() == (engine_input::q | engine_input::k | engine_input::v));
    CHECK(needed_inputs<presets::dynakv>() == (engine_input::q | engine_input::k | engine_input::v));
    constexpr engine_input needed = needed_inputs<calibrated>();
    CHECK(contains(needed, engine_input::calibration));
    CHECK(std::string(missing_input(needed, engine_input::q | engine_input::k | engine_input::v)) ==
          "calibration");
    CHECK(std::string(missing_input(needed, engine_input::k | engine_input::v)) == "q");
    CHECK(std::string(missing_input(needed, needed)).empty());
    for (const auto& [one, name] :
         {std::pair{engine_input::q, "q"}, std::pair{engine_input::k, "k"}, std::pair{engine_input::v, "v"},
          std::pair{engine_input::k_pre, "k_pre"}, std::pair{engine_input::x, "x"},
          std::pair{engine_input::probe, "probe"}, std::pair{engine_input::external, "external"},
          std::pair{engine_input::calibration, "calibration"}, std::pair{engine_input::chosen, "chosen"}})
        CHECK(std::string(missing_input(one, engine_input::nothing)) == name);
}

TEST_CASE("a preset is checked without being instantiated") {
    static_assert(preset_for<presets::dynakv, default_engine_inputs>);
    static_assert(!preset_for<presets::dynakv, engine_inputs<engine_input::k, engine_input::v>>);
    static_assert(!preset_for<calibrated, default_engine_inputs>);
    static_assert(preset_for<calibrated, engine_inputs<engine_input::q, engine_input::k, engine_input::v,
                                                       engine_input::calibration>>);
    CHECK(preset_name<presets::dynakv>() == "dynakv");
    CHECK(preset_name<silent>() == "(unnamed)");
}

} // namespace kvtl_test
