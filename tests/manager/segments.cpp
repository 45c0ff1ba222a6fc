// Prompts longer than a segment: the pool holds a segment, not a lane.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/int8.hpp>

#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/on_device.hpp"
#include "support/recording_io.hpp"

#include <cstring>
#include <set>
#include <type_traits>

namespace manager_segments_test {

using namespace kvtl_test;

namespace {

/// Chunks wait as the rows that they are, or beside records of another form.
template <class Preset, class Compressor = kvtl::raw<float>>
using cache_of = kvtl::kv_manager<on_device<Preset, recording, Compressor>>;
using dual = cache_of<kvtl::presets::dynakv>;
using dual_codes = cache_of<kvtl::presets::dynakv, kvtl::int8_row<float>>;

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::uint32_t segment = 192, prompt = 900, sinks = 4, window = 8;

template <class Cache>
typename Cache::config config_for(std::shared_ptr<io_log> log, std::uint32_t of_segment) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 1300;
    c.attend_tokens = 1300;
    c.window_tokens = window;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    c.clusterer.segment = of_segment;
    c.io.log = std::move(log);
    c.memory_bytes = std::size_t{16} << 20;
    return c;
}

struct run {
    std::vector<float> outputs;
    double error = 0;
};

/// A prompt in chunks, decode, a turn, decode.
template <class Cache> run of_engine(typename Cache::config c, const drift& data, std::size_t chunk) {
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data);
    one.prefill(prompt, chunk);
    one.decode(40);
    one.prefill(70);
    one.decode(20);
    one.check_tokens();
    return {one.outputs(), one.error()};
}

template <class Cache> void attends_everything(double tolerance) {
    const drift data(small, 1300, 3);
    const auto log = std::make_shared<io_log>();
    for (const std::size_t chunk : {std::size_t{prompt}, std::size_t{333}, std::size_t{50}}) {
        const auto whole = of_engine<Cache>(config_for<Cache>(log, 8192), data, chunk);
        CHECK(whole.error < tolerance);
        for (const bool smallest : {false, true}) {
            CAPTURE(chunk);
            CAPTURE(smallest);
            auto c = config_for<Cache>(log, segment);
            if (smallest) c.memory_bytes = least_memory<Cache>(c);
            const run cut = of_engine<Cache>(c, data, chunk);
            CHECK(cut.error < tolerance);
            // The prompt is attended with the same bits, however it is cut; what decode sums up lies elsewhere.
            const std::size_t of_prompt =
                std::size_t{prompt} * small.layers * small.query_heads * small.head_dim;
            CHECK(std::memcmp(cut.outputs.data(), whole.outputs.data(), of_prompt * sizeof(float)) == 0);
        }
    }
}
} // namespace

TEST_CASE("a prompt of several segments is attended exactly, whatever waits on storage") {
    attends_everything<dual>(exact);
    attends_everything<dual_codes>(0.05);
}

TEST_CASE("every entry is in one place, and no cluster of the prompt spans two segments") {
    const drift data(small, 1300, 3, {.numbered = true});
    const auto look = [&](auto cache_tag, std::size_t chunk) {
        using cache_type = typename decltype(cache_tag)::type;
        CAPTURE(cache_type::types::layout::name);
        CAPTURE(chunk);
        const auto log = std::make_shared<io_log>();
        auto cache = open_cache<cache_type>(config_for<cache_type>(log, segment));
        reader<cache_type> one(cache, data, 0);
        one.prefill(prompt, chunk);
        for (std::uint32_t layer = 0; layer < small.layers; ++layer)
            for (std::uint32_t head = 0; head < small.kv_heads; ++head) {
                const lane_content c = look_at(cache, *log, data, layer, head);
                REQUIRE(c.complete());
                REQUIRE(c.keys_fit);
                REQUIRE(c.counts_agree);
                CHECK(c.sinks.size() == sinks);
                CHECK(c.window.size() == window);
                std::set<std::uint32_t> segments;
                for (const token_list& u : c.units) {
                    REQUIRE(u.size() <= 16);
                    for (const std::uint32_t t : u)
                        REQUIRE((t - sinks) / segment == (u[0] - sinks) / segment);
                    segments.insert((u[0] - sinks) / segment);
                }
                CHECK(segments.size() == (prompt - sinks - window + segment - 1) / segment);
            }
        one.decode(200);
        CHECK(look_at(cache, *log, data, 1, 1).complete());
    };
    look(std::type_identity<dual>{}, prompt);
    look(std::type_identity<dual>{}, 130);
    look(std::type_identity<dual_codes>{}, 77);
}

TEST_CASE("frames do not grow with the prompt") {
    const auto log = std::make_shared<io_log>();
    auto c = config_for<dual>(log, 8192);
    c.attend_tokens = 128;
    const auto frames = [&](std::size_t tokens) {
        c.max_tokens = tokens;
        c.memory_bytes = std::size_t{1} << 30;
        c.memory_bytes = least_memory<dual>(c);
        return open_cache<dual>(c).stats().bytes_by_part.frames;
    };
    CHECK(frames(40000) <= frames(4000) + 4096);
}

TEST_CASE("a lane that becomes long enough in the middle of a turn is clustered there") {
    const drift data(small, 1300, 3, {.numbered = true});
    const auto log = std::make_shared<io_log>();
    auto c = config_for<dual>(log, segment);
    c.memory_bytes = least_memory<dual>(c);
    auto cache = open_cache<dual>(c);
    reader<dual> one(cache, data);
    one.prefill(30);
    one.decode(5);
    CHECK_FALSE(kvtl::shard_access::of(cache, 0).store().at(0).state().clustered);
    one.prefill(600);
    CHECK(kvtl::shard_access::of(cache, 0).store().at(0).state().clustered);
    one.decode(30);
    CHECK(one.error() < 1e-3); // of values up to 1300
    CHECK(look_at(cache, *log, data, 0, 0).complete());
    CHECK(look_at(cache, *log, data, 1, 1).complete());
}

TEST_CASE("a segment is no smaller than what a lane is clustered with") {
    const auto log = std::make_shared<io_log>();
    auto c = config_for<dual>(log, segment);
    c.clusterer.segment = 32;
    const auto refused = dual::open(c);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message ==
          "clusterer.segment is 32; valid: 64 (min_entries_to_cluster) to 1048576");
}

TEST_CASE("a chunk that ends in the page in which it began writes that page once") {
    const drift data(small, 1300, 3);
    const auto log = std::make_shared<io_log>();
    auto cache = open_cache<dual>(config_for<dual>(log, segment)); // 8 rows of f32 to a page
    const auto seq = *cache.begin();
    for (const std::size_t chunk : {0U, 1U, 2U})
        for (std::size_t l = 0; l < small.layers; ++l) {
            const auto before = cache.stats().writes;
            auto in = data.input(l, 3 * chunk, 3); // the third one goes on in the next page
            in.last_chunk = false;
            require_ok(cache.prefill(seq, l, in, {}));
            CHECK(cache.stats().writes - before == small.kv_heads * (chunk == 2 ? 2 : 1));
        }
}

} // namespace manager_segments_test
