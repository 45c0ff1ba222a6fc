// SPDX-License-Identifier: MIT
#include <kvtl/presets/infinigen.hpp>

#include "contracts/io.hpp"
#include "support/calibrated.hpp"
#include "support/size_knob.hpp"

namespace infinigen_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{2, 4, 2, 64};
using kvtl::engine_input;
using with_calibration =
    kvtl::engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::calibration>;
template <class Preset> using calibrated_cache = cache_of<Preset, with_calibration>;

/// A prompt in chunks, decode and a further turn, with bases that no prompt has anything to do with.
template <class Preset> void with_any_basis(typename calibrated_cache<Preset>::config c = {}) {
    const scratch_folder folder;
    c.engine_inputs = with_calibration::value;
    c.calibration = folder.file("bases.bin");
    write_calibration(c.calibration, model, 32, 5);
    for (const bool smallest : {false, true})
        run_scenario<calibrated_cache<Preset>>({.shape = model,
                                                .prompt = 500,
                                                .chunk = 170,
                                                .decode = 40,
                                                .turn = 60,
                                                .turn_decode = 20,
                                                .smallest = smallest},
                                               c);
}
} // namespace

TEST_CASE("infinigen with the budget for everything is dense attention, whatever the basis") {
    calibrated_cache<kvtl::presets::infinigen>::config c;
    c.selector.alpha = 1e9F; // otherwise it leaves some out
    with_any_basis<kvtl::presets::infinigen>(c);
}

TEST_CASE("infinigen without a basis is refused, and says what it needs") {
    const auto opened =
        calibrated_cache<kvtl::presets::infinigen>::open({.shape = model,
                                                          .max_tokens = 100,
                                                          .memory_bytes = 64 << 20,
                                                          .engine_inputs = with_calibration::value});
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("calibration") != std::string::npos);
}

TEST_CASE("infinigen_star with the budget for everything is dense attention, whatever the basis") {
    with_any_basis<kvtl::presets::infinigen_star>();
}

TEST_CASE("infinigen_star without a basis is refused, and says what it needs") {
    const auto opened =
        calibrated_cache<kvtl::presets::infinigen_star>::open({.shape = model,
                                                               .max_tokens = 100,
                                                               .memory_bytes = 64 << 20,
                                                               .engine_inputs = with_calibration::value});
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("calibration") != std::string::npos);
}

TEST_CASE("infinigen_star_reuse with the budget for everything is dense attention, whatever the basis") {
    with_any_basis<kvtl::presets::infinigen_star_reuse>();
}

TEST_CASE("infinigen_star_reuse without a basis is refused, and says what it needs") {
    const auto opened = calibrated_cache<kvtl::presets::infinigen_star_reuse>::open(
        {.shape = model,
         .max_tokens = 100,
         .memory_bytes = 64 << 20,
         .engine_inputs = with_calibration::value});
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("calibration") != std::string::npos);
}

} // namespace infinigen_test
