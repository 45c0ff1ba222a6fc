// signals: sets, declarations with defaults, and the union a preset needs.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/slots/preset.hpp>

#include <doctest/doctest.h>

#include <string>

namespace kvtl_test {

using namespace kvtl;
using kvtl::signal; // rather than the system's function

namespace {

struct silent {};
struct demanding {
    static constexpr signal needs = signal::k_pre | signal::x;
    static constexpr feedback reads_mass = feedback::full;
    static constexpr bool layer_wide_only = true;
};
struct demanding_index : centroid {
    static constexpr signal needs = signal::calibration;
};
struct calibrated : presets::dynakv {
    using index = demanding_index;
};

} // namespace

TEST_CASE("signals are sets") {
    constexpr signal set = signal::q | signal::k_pre;
    static_assert(contains(set, signal::q) && contains(set, signal::nothing) && contains(set, set));
    static_assert(!contains(set, signal::k) && !contains(set, signal::q | signal::k));
    static_assert((set & signal::q) == signal::q && (set & signal::v) == signal::nothing);
    static_assert(without(set, signal::q) == signal::k_pre && without(set, signal::v) == set);
    CHECK(supplied<>::value == signal::nothing);
    CHECK(supplied<signal::q, signal::x>::value == (signal::q | signal::x));
    CHECK(supplied_by_default::value == (signal::q | signal::k | signal::v));
}

TEST_CASE("what a policy does not declare it does not need") {
    CHECK(needs_of<silent>() == signal::nothing);
    CHECK(feedback_of<silent>() == feedback::unused);
    CHECK_FALSE(layer_wide_only<silent>());
    CHECK(needs_of<demanding>() == (signal::k_pre | signal::x));
    CHECK(feedback_of<demanding>() == feedback::full);
    CHECK(layer_wide_only<demanding>());
}

TEST_CASE("a preset needs the union, and the first signal that is missing is named") {
    CHECK(needed_signals<presets::full>() == (signal::q | signal::k | signal::v));
    CHECK(needed_signals<presets::dynakv>() == (signal::q | signal::k | signal::v));
    constexpr signal needed = needed_signals<calibrated>();
    CHECK(contains(needed, signal::calibration));
    CHECK(std::string(missing_signal(needed, signal::q | signal::k | signal::v)) == "calibration");
    CHECK(std::string(missing_signal(needed, signal::k | signal::v)) == "q");
    CHECK(std::string(missing_signal(needed, needed)).empty());
    for (const auto& [one, name] :
         {std::pair{signal::q, "q"}, std::pair{signal::k, "k"}, std::pair{signal::v, "v"},
          std::pair{signal::k_pre, "k_pre"}, std::pair{signal::x, "x"}, std::pair{signal::probe, "probe"},
          std::pair{signal::external, "external"}, std::pair{signal::calibration, "calibration"}})
        CHECK(std::string(missing_signal(one, signal::nothing)) == name);
}

TEST_CASE("a preset is checked without being instantiated") {
    static_assert(preset_for<presets::dynakv, supplied_by_default>);
    static_assert(!preset_for<presets::dynakv, supplied<signal::k, signal::v>>);
    static_assert(!preset_for<calibrated, supplied_by_default>);
    static_assert(preset_for<calibrated, supplied<signal::q, signal::k, signal::v, signal::calibration>>);
    CHECK(preset_name<presets::dynakv>() == "dynakv");
    CHECK(preset_name<silent>() == "(unnamed)");
}

} // namespace kvtl_test
