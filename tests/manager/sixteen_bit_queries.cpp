// Queries and results of 16 bits where entries are retrieved: prompts in chunks, steps, drafts, turns, batches, guesses and
// selections give what floats of the same numbers give, rounded once; with as little memory as floats take.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/kvswap.hpp>

#include "contracts/io.hpp"
#include "support/calibrated.hpp"
#include "support/sixteen_bits.hpp"
#include "support/size_knob.hpp"

namespace manager_sixteen_bit_queries_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 64};

template <class Cache> typename Cache::config config_for(std::uint32_t sequences = 2) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 640;
    c.max_sequences = sequences;
    c.attend_tokens = 160;
    c.memory_bytes = std::size_t{16} << 20;
    return c;
}
} // namespace

TEST_CASE("clusters, and estimates of those that are not read") {
    using clusters = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<clusters>();
    c.shards = 2;
    check_sixteen_bits<clusters>(c, {.turns = true, .prefetches = true});
    using estimates = cache_of<kvtl::presets::dynakv_estimate>;
    check_sixteen_bits<estimates>(config_for<estimates>(), {.turns = true});
}

TEST_CASE("groups of all heads that are chosen a layer ahead") {
    using kvtl::engine_input;
    using with_calibration =
        kvtl::engine_inputs<engine_input::q, engine_input::k, engine_input::v, engine_input::calibration>;
    using groups = cache_of<kvtl::presets::kvswap, with_calibration>;
    const scratch_folder folder;
    auto c = config_for<groups>();
    c.engine_inputs = with_calibration::value;
    c.calibration = folder.file("bases.bin");
    write_calibration(c.calibration, small, 32, 5);
    c.schedule.true_layers = 1;
    check_sixteen_bits<groups>(c, {.turns = true, .prefetches = true});
}

TEST_CASE("everything in memory, heads of a size that fills no register") {
    using cache_t = kvtl::full;
    auto c = config_for<cache_t>();
    c.shape.head_dim = 20;
    check_sixteen_bits<cache_t>(c, {.turns = true});
}

TEST_CASE("a prompt of several segments: what one leaves of a query waits beside the rows") {
    const auto check = [](auto tag) {
        using cache_t = cache_of<typename decltype(tag)::type>;
        auto c = config_for<cache_t>(1);
        c.max_tokens = 1100;
        c.window_tokens = 8;
        c.clusterer.tokens_per_cluster = 8;
        c.clusterer.min_entries_to_cluster = 64;
        c.clusterer.pending_entries = 6;
        c.clusterer.segment = 192;
        for (const bool smallest : {false, true})
            for (const std::size_t chunk : {std::size_t{900}, std::size_t{333}}) {
                CAPTURE(smallest);
                CAPTURE(chunk);
                if (smallest) c.memory_bytes = least_memory<cache_t>(c);
                check_sixteen_bits<cache_t>(
                    c, {.prompt = 900, .chunk = chunk, .decode = 5, .turns = true, .selects = !smallest});
            }
    };
    check(std::type_identity<kvtl::presets::dynakv>{});
}

TEST_CASE("what is wrong with q or out is said in 16 bits too") {
    using cache_t = cache_of<kvtl::presets::dynakv>;
    const auto c = config_for<cache_t>(1);
    const drift data(small, 40, 7);
    const engine_numbers<kvtl::f16> numbers(data);
    cache_t cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    const auto says = [](const kvtl::status& s, const char* what) {
        CHECK(s.code() == kvtl::errc::invalid_argument);
        CHECK_MESSAGE(std::string(s.what()).find(what) != std::string::npos, s.what());
    };
    std::vector<kvtl::bf16> out(2 * data.query_floats());
    kvtl::layer_input in = numbers.input<kvtl::f16>(0, 0, 2);
    says(cache.prefill(seq, 0, in, kvtl::tensor_span(out).first(256)),
         "prefill: out has 256 numbers; valid: 512");
    in.q = in.q.first(256);
    says(cache.prefill(seq, 0, in, out), "prefill: q has 256 numbers; valid: 512");
    std::vector<kvtl::f16> q(512);
    q[300] = kvtl::f16{0x7E00};
    in.q = q;
    says(cache.prefill(seq, 0, in, out), "prefill: q holds a NaN");
    says(cache.prefetch(seq, 0, in.q), "prefetch: q has 512 numbers; valid: 256");
    says(cache.select(seq, 0, in.q.first(8), [](auto&&...) {}), "select: q has 8 numbers; valid: 256");
    says(cache.attend(seq, 0, numbers.input<kvtl::f16>(0, 0, 1), {}), "attend: out is empty");
    CHECK(cache.tokens(seq, 0) == 0);
}

} // namespace manager_sixteen_bit_queries_test
