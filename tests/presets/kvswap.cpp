// SPDX-License-Identifier: MIT
#include <kvtl/presets/kvswap.hpp>

#ifdef KVTL_HAS_CALIBRATE
#include <kvtl/calibration/fit/fit_trace.hpp>
#include <kvtl/calibration/trace_writer.hpp>
#endif

#include "contracts/io.hpp"
#include "support/calibrated.hpp"
#include "support/size_knob.hpp"

namespace kvswap_test {

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

TEST_CASE("kvswap with the budget for everything is dense attention, whatever the basis") {
    with_any_basis<kvtl::presets::kvswap>();
    with_any_basis<kvtl::presets::kvswap_softmax>();
}

TEST_CASE("kvswap without a basis is refused, and says what it needs") {
    const auto opened =
        calibrated_cache<kvtl::presets::kvswap>::open({.shape = model,
                                                       .max_tokens = 100,
                                                       .memory_bytes = 64 << 20,
                                                       .engine_inputs = with_calibration::value});
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.error().message.find("calibration") != std::string::npos);
}

TEST_CASE("layers that share a cache have no bases of their own, which is said") {
    const scratch_folder folder;
    const std::string bases = folder.file("bases.bin");
    write_calibration(bases, model, 32, 5);
    using cache = calibrated_cache<kvtl::presets::kvswap>;
    const auto opened = cache::open({.shape = model,
                                     .owner = {0, 0},
                                     .max_tokens = 100,
                                     .memory_bytes = 64 << 20,
                                     .calibration = bases,
                                     .engine_inputs = with_calibration::value});
    REQUIRE_FALSE(opened.ok());
    CHECK_MESSAGE(
        opened.error().message.find("owner: preset kvswap reads a calibration, whose layers are all of") !=
            std::string::npos,
        opened.error().message);
}

#ifdef KVTL_HAS_CALIBRATE
namespace {
/// An engine records what a text makes its model compute, and fits a file to the recording.
void calibrate(const drift& text, const std::string& trace_path, const std::string& path,
               std::uint32_t rank) {
    constexpr std::size_t tokens = 400;
    auto out = kvtl::trace_writer::create(trace_path, {.shape = model, .fingerprint = 1});
    REQUIRE(out);
    for (std::uint32_t l = 0; l < model.layers; ++l) {
        kvtl::layer_input in;
        in.k = text.k(l, 0, tokens), in.v = text.v(l, 0, tokens), in.q = text.q(l, 0, tokens);
        out->write(0, l, in);
    }
    require_ok(out->close(tokens, tokens));
    auto trace = kvtl::trace_reader::open(trace_path);
    REQUIRE(trace);
    auto fit = kvtl::calibration_fit::make(model, {.rank = rank});
    REQUIRE(fit);
    require_ok(add_trace(*fit, *trace));
    const auto bases = fit->finish();
    REQUIRE(bases);
    require_ok(bases->write(path, trace->header().fingerprint));
}
} // namespace

TEST_CASE("kvswap, bases fitted to its own recorded keys, budget for everything: dense attention") {
    const scratch_folder folder;
    using cache_t = calibrated_cache<kvtl::presets::kvswap>;
    constexpr std::uint32_t rank = 16;
    cache_t::config c{.engine_inputs = with_calibration::value};
    c.index.rank = rank;
    c.calibration = folder.file("own.cal");
    c.calibration_model = 1;
    calibrate(*shared_stream<cache_t::element_type>::of(model, 500, 7).data, folder.file("own.trace"),
              c.calibration, rank);
    for (const bool smallest : {false, true})
        run_scenario<cache_t>({.shape = model, .prompt = 500, .decode = 40, .smallest = smallest}, c);
    c.calibration_model = 2;
    const auto refused = cache_t::open(config_of<cache_t>({.shape = model, .prompt = 500}, c));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message.find("was fitted to another model of the same shape") != std::string::npos);
}
#endif

} // namespace kvswap_test
