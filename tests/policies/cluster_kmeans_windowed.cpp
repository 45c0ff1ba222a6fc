// kmeans_windowed: segments and directions in prompts, batches during decode.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/retroinfer.hpp>

#include "contracts/clusterer.hpp"
#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>

namespace cluster_kmeans_windowed_test {

using namespace kvtl;
using namespace kvtl_test;

namespace {

using windowed = kmeans_windowed<>;
using lane_model_type = lane_model<windowed>;
using rows_of_floats = std::vector<std::vector<float>>;

std::vector<std::uint32_t> group(const windowed::config& c, const rows_of_floats& rows,
                                 std::uint32_t& units) {
    const lane_model_type lane(c, static_cast<std::uint32_t>(rows[0].size()));
    return clusterer_suite::group<windowed, float>(lane, rows, units);
}

} // namespace

TEST_CASE("kmeans_windowed") {
    clusterer_contract<windowed>(
        {.tokens_per_cluster = 4, .segment = 100, .window = 32, .window_clusters = 4, .centred = false});
}

TEST_CASE("kmeans_windowed with the plan of a preset") {
    clusterer_contract<windowed>(
        {.tokens_per_cluster = 9, .segment = 8192, .window = 64, .window_clusters = 7});
}

TEST_CASE("segments share no cluster") {
    const auto rows = clusterer_suite::make_keys(clusterer_suite::keys::normal, 90, 8, 3);
    std::uint32_t units = 0;
    const auto label = group({.tokens_per_cluster = 8, .segment = 40}, rows, units);
    std::set<std::uint32_t> of[3];
    for (std::uint32_t i = 0; i < 90; ++i) of[i / 40].insert(label[i]);
    CHECK(of[0].size() + of[1].size() + of[2].size() == units);
    for (const std::uint32_t u : of[1]) CHECK_FALSE(of[0].contains(u));
    for (const std::uint32_t u : of[2]) CHECK_FALSE((of[0].contains(u) || of[1].contains(u)));
}

TEST_CASE("directions are clustered, lengths do not matter") {
    // Four directions, and lengths from 0.1 to 1000: as points they would fall apart by length.
    rows_of_floats rows;
    for (std::uint32_t i = 0; i < 32; ++i) {
        const float length = std::pow(10.0F, static_cast<float>(i / 4 % 5) - 1.0F);
        const float side = 0.02F * static_cast<float>(i % 3);
        rows.push_back(i % 4 == 0   ? std::vector{length, side * length}
                       : i % 4 == 1 ? std::vector{side * length, length}
                       : i % 4 == 2 ? std::vector{-length, side * length}
                                    : std::vector{side * length, -length});
    }
    std::uint32_t units = 0;
    const auto label = group({.tokens_per_cluster = 8, .segment = 64, .centred = false}, rows, units);
    CHECK(units == 4);
    for (std::uint32_t i = 4; i < 32; ++i) CHECK(label[i] == label[i % 4]);
}

TEST_CASE("centred directions ignore what all keys have in common") {
    rows_of_floats rows;
    for (std::uint32_t i = 0; i < 32; ++i) { // around (500, 500), in four directions from there
        const float near = 0.01F * static_cast<float>(i / 4);
        const float x = i % 4 == 0 ? 1.0F + near : i % 4 == 2 ? -1.0F - near : 0.0F;
        const float y = i % 4 == 1 ? 1.0F + near : i % 4 == 3 ? -1.0F - near : 0.0F;
        rows.push_back({500.0F + x, 500.0F + y});
    }
    std::uint32_t units = 0;
    const auto label = group({.tokens_per_cluster = 8, .segment = 64, .centred = true}, rows, units);
    CHECK(units == 4);
    for (std::uint32_t i = 4; i < 32; ++i) CHECK(label[i] == label[i % 4]);
}

TEST_CASE("values that cannot work are refused by name") {
    using state = windowed::state;
    const auto says = [](const windowed::config& c, const char* text) {
        const status s = state::check(c);
        return s.code() == errc::invalid_argument && std::string(s.what()).find(text) == 0;
    };
    CHECK(says({.tokens_per_cluster = 3}, "clusterer.tokens_per_cluster is 3"));
    CHECK(says({.tokens_per_cluster = 16, .segment = 31}, "clusterer.segment is 31; valid: 32"));
    CHECK(says({.window = 0}, "clusterer.window is 0"));
    CHECK(says({.window = 20, .window_clusters = 21},
               "clusterer.window_clusters is 21; valid: 1 to window (20)"));
    CHECK(says({.smallest_batch = 0}, "clusterer.smallest_batch is 0"));
    CHECK(state::check({}).ok());
}

namespace {

template <class Preset> struct recorded : Preset {
    using compressor = raw<float>;
    using io = recording;
};
struct failing : presets::clusterkv {
    using compressor = raw<float>;
    using io = faulty<in_memory>;
};

template <class Cache> typename Cache::config small_batches(std::size_t tokens, std::size_t attend) {
    typename Cache::config c;
    c.shape = {1, 2, 1, 64};
    c.max_tokens = tokens;
    c.attend_tokens = attend;
    c.window_tokens = 8;
    c.sink_tokens = 4;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.window = 40;
    c.clusterer.window_clusters = 4;
    return c;
}

} // namespace

TEST_CASE("decoded entries wait until a batch is full and become units together") {
    using cache_type = kv_manager<recorded<presets::retroinfer>>;
    auto c = small_batches<cache_type>(700, 320);
    c.memory_bytes = least_memory<cache_type>(c);
    const auto log = std::make_shared<io_log>();
    c.io.log = log;
    const drift data(c.shape, 700, 3, {.numbered = true});
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(130);
    const auto begin = look_at(cache, *log, data, 0, 0).units.size();
    std::size_t units = begin, batches = 0;
    std::uint32_t next = 130 - 8;
    for (std::size_t t = 130; t < 690; ++t) {
        one.decode(1);
        const lane_content lane = look_at(cache, *log, data, 0, 0);
        REQUIRE(lane.complete());
        REQUIRE(lane.keys_fit);
        REQUIRE(lane.frames_agree);
        REQUIRE(lane.counts_agree);
        CHECK(lane.buffer.empty());
        CHECK(lane.window.size() >= 8);
        CHECK(lane.window.size() < 48);
        if (lane.units.size() == units) continue;
        ++batches;
        CHECK(lane.units.size() >= units + 4);
        std::set<std::uint32_t> fresh;
        for (; units < lane.units.size(); ++units)
            fresh.insert(lane.units[units].begin(), lane.units[units].end());
        CHECK(fresh.size() == 40);
        CHECK(*fresh.begin() == next);
        CHECK(*fresh.rbegin() == next + 39);
        next += 40;
    }
    CHECK(batches == 14);
    CHECK(log->reads_before_write == 0);
    // What is kept of a unit is that of its entries.
    const lane_content lane = look_at(cache, *log, data, 0, 0);
    const auto block = kvtl::shard_access::of(cache, 0).store().at(0);
    double worst = 0;
    float kept[64];
    for (std::uint32_t u = 0; u < lane.units.size(); ++u)
        for (std::uint32_t d = 0; d < 64; ++d) {
            block.means().get(u, kept);
            double mean = 0;
            for (const std::uint32_t t : lane.units[u])
                mean += static_cast<double>(data.key(0, t, 0)[d]) / static_cast<double>(lane.units[u].size());
            double step = 0;
            for (const float x : kept) step = std::max(step, std::fabs(static_cast<double>(x)) / 127);
            worst = std::max(worst, std::fabs(mean - static_cast<double>(kept[d])) / step);
        }
    CHECK(worst < 0.51); // rounded once
}

TEST_CASE("no more entries wait than a quarter of what may be attended, or the smallest batch") {
    using cache_type = kv_manager<recorded<presets::clusterkv>>;
    for (const auto& [attend, smallest] :
         {std::pair(48U, 16U), {96U, 16U}, {1000U, 16U}, {96U, 32U}, {96U, 64U}}) {
        auto c = small_batches<cache_type>(400, attend);
        c.clusterer.smallest_batch = smallest;
        c.memory_bytes = std::size_t{2} << 20;
        const auto log = std::make_shared<io_log>();
        c.io.log = log;
        const drift data(c.shape, 400, 3, {.numbered = true});
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> one(cache, data, 0);
        one.prefill(100);
        std::size_t most = 0;
        for (std::size_t t = 100; t < 400; ++t) {
            one.decode(1);
            most = std::max(most, look_at(cache, *log, data, 0, 0).window.size());
        }
        CHECK(most == 8 + std::min(40U, std::max(smallest, attend / 4)) - 1);
    }
}

TEST_CASE("a batch that cannot be placed stays in the window until writes succeed again") {
    // Every entry becomes a page of its own, and a batch has more pages than there are frames: when writes
    // fail, frames run out in the middle of it.
    using cache_type = kv_manager<failing>;
    auto c = small_batches<cache_type>(500, 500);
    c.shape.head_dim = 16;
    c.clusterer.window = c.clusterer.window_clusters = 100;
    c.memory_bytes = least_memory<cache_type>(c);
    c.io.faults = std::make_shared<io_faults>();
    const drift data(c.shape, 500, 3);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data);
    one.prefill(200);
    const auto lane = [&cache] { return kvtl::shard_access::of(cache, 0).store().at(0); };
    REQUIRE(kvtl::shard_access::of(cache, 0).store().pool_of(0).size() < 100);
    const std::uint32_t units = lane().state().units;
    c.io.faults->fail_write.first = 0, c.io.faults->fail_write.count = UINT64_MAX;
    one.decode(100); // the last one fills the batch
    CHECK(lane().state().units == units);
    CHECK(lane().state().window_begin == 192);
    std::vector<float> out(data.query_floats());
    const status s = cache.attend(one.id(), 0, data.input(0, 300), out);
    CHECK_FALSE(s.ok());
    CHECK(cache.tokens(one.id(), 0) == 300);
    CHECK(lane().state().units == units);
    c.io.faults->fail_write.first = io_faults::never;
    require_ok(cache.retry_writes(one.id()));
    one.decode(190);
    CHECK(lane().state().units == units + 200);
    CHECK(one.error() < exact);
    one.check_tokens();
}

} // namespace cluster_kmeans_windowed_test
