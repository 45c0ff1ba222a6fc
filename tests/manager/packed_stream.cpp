// Units that lie one behind the other: the bits of other layouts, strict order whatever the pages and segments, and what
// is left of it when the device fails in mid-shift.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/compress_int8_row.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/recording_io.hpp"

#include <cmath>
#include <utility>

namespace manager_packed_stream_test {

using namespace kvtl_test;

namespace {

template <class Preset, class Compressor = kvtl::raw<float>> struct watched : Preset {
    using compressor = Compressor;
    using io = kvtl::faulty<recording>;
};
using packed_rows = kvtl::kv_manager<watched<kvtl::presets::dynakv_packed>>;
using packed_bytes = kvtl::kv_manager<watched<kvtl::presets::dynakv_packed, kvtl::int8_row<float>>>;

constexpr kvtl::shape small{2, 4, 2, 64};

template <class Cache> typename Cache::config config_for(std::size_t max_tokens, std::size_t attend_tokens) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = attend_tokens;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.found_entries = 64;
    c.clusterer.buffer_entries = 6;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    c.memory_bytes = least_memory<Cache>(c) + (std::size_t{128} << 10);
    return c;
}

/// Rows of the streams that are no entry's, over all lanes. Every entry is in one place and as it was.
template <class Cache> std::uint32_t gaps(Cache& cache, io_log& log, const drift& data) {
    auto& store = cache.inspect(0).store();
    store.io().poll(false);
    std::uint32_t rows = 0;
    for (std::uint32_t layer = 0; layer < small.layers; ++layer)
        for (std::uint32_t lane = 0; lane < small.kv_heads; ++lane) {
            const lane_content c = look_at(cache, log, data, layer, lane);
            REQUIRE(c.complete());
            REQUIRE(c.keys_fit);
            REQUIRE(c.frames_agree);
            REQUIRE(c.counts_agree);
            const auto l = store.at(lane_id(small, 0, layer, lane));
            rows += l.state().stored - l.entries_in_units();
        }
    return rows;
}

template <class Cache> void stays_packed(std::size_t prompt, std::size_t chunk) {
    auto c = config_for<Cache>(prompt + 200, 72);
    c.clusterer.segment = 192; // not a multiple of the rows that a page of signed bytes has
    c.memory_bytes = least_memory<Cache>(c);
    const drift data(small, c.max_tokens, 5, {.numbered = true});
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(prompt, chunk);
    CHECK(gaps(cache, *c.io.inner.log, data) == 0);
    CHECK(cache.stats().bytes_moved_by_updates == 0);
    for (int i = 0; i < 12; ++i) {
        one.decode(10);
        REQUIRE(gaps(cache, *c.io.inner.log, data) == 0);
    }
    one.prefill(50);
    CHECK(gaps(cache, *c.io.inner.log, data) == 0);
    const kvtl::statistics s = cache.stats();
    CHECK(s.splits > 0);
    CHECK(s.bytes_moved_by_updates ==
          s.bytes_moved_by_appends + s.bytes_moved_by_staying_children + s.bytes_moved_by_leaving_children);
    CHECK(s.bytes_moved_by_updates <= s.written_bytes);
}

} // namespace

TEST_CASE("with everything attended the bits are those of dual_head") {
    const auto run = []<class Cache>(Cache*) {
        const scratch_folder folder;
        typename Cache::config c;
        c.shape = small;
        c.max_tokens = c.attend_tokens = 900;
        c.mean_bits = 32; // what a unit in pages of its own keeps less exactly
        c.memory_bytes = std::size_t{64} << 20;
        c.io.path = folder.file("a.kv");
        const drift data(small, c.max_tokens, 8);
        auto cache = open_cache<Cache>(c);
        reader<Cache> one(cache, data, 0);
        one.prefill(600, 250);
        one.decode(120);
        one.prefill(60);
        one.decode(60);
        CHECK(cache.stats().splits > 0);
        return one.outputs();
    };
    const auto expected = run(static_cast<kvtl::dynakv*>(nullptr));
    CHECK(same_bits(run(static_cast<kvtl::dynakv_packed*>(nullptr)), expected));
}

TEST_CASE("units stay packed, in pages of plain rows and of others, with prompts of several segments") {
    SUBCASE("plain rows") {
        stays_packed<packed_rows>(1500, 1500);
    }
    SUBCASE("plain rows in chunks") {
        stays_packed<packed_rows>(700, 90);
    }
    SUBCASE("signed bytes") {
        stays_packed<packed_bytes>(1500, 1500);
    }
    SUBCASE("signed bytes in chunks") {
        stays_packed<packed_bytes>(700, 90);
    }
}

TEST_CASE("what joins a unit moves the entries behind it, and no others") {
    auto c = config_for<packed_rows>(500, 500);
    c.memory_bytes = std::size_t{16} << 20;
    const drift data(small, c.max_tokens, 6, {.numbered = true});
    auto cache = open_cache<packed_rows>(c);
    auto& store = cache.inspect(0).store();
    reader<packed_rows> one(cache, data, 0);
    one.prefill(300);
    const std::size_t entry_bytes = 2 * 64 * sizeof(float);
    std::uint64_t expected = 0, splits = cache.stats().splits, followed = 0;
    for (int i = 0; i < 100; ++i) {
        std::vector<std::vector<std::uint32_t>> before, begins;
        for (std::uint32_t id = 0; id < small.layers * small.kv_heads; ++id) {
            const auto l = store.at(id);
            before.emplace_back(), begins.emplace_back();
            for (const auto& u : l.units())
                before[id].push_back(u.entries), begins[id].push_back(u.members());
        }
        const std::uint64_t moved = cache.stats().bytes_moved_by_appends;
        one.decode(1);
        if (std::exchange(splits, cache.stats().splits) != cache.stats().splits) continue;
        expected = 0;
        for (std::uint32_t id = 0; id < before.size(); ++id) {
            const auto l = store.at(id);
            for (std::uint32_t u = 0; u < l.state().units; ++u) {
                if (l.unit(u).entries == before[id][u]) continue;
                REQUIRE(l.unit(u).entries == before[id][u] + 1);
                for (std::uint32_t v = 0; v < l.state().units; ++v)
                    if (begins[id][v] > begins[id][u]) expected += before[id][v] * entry_bytes;
            }
        }
        CHECK(cache.stats().bytes_moved_by_appends - moved == expected);
        ++followed;
    }
    CHECK(followed > 30);
}

TEST_CASE("reads that fail in mid-shift leave gaps, and every entry in one place") {
    auto c = config_for<packed_rows>(700, 700); // everything attended
    auto& f = *c.io.faults;
    const drift data(small, c.max_tokens, 7, {.numbered = true});
    auto cache = open_cache<packed_rows>(c);
    const auto seq = *cache.begin();
    dense_reference<float> reference(data);
    std::size_t failures = 0, token = 300;
    for (std::size_t l = 0; l < small.layers; ++l) {
        std::vector<float> out(token * data.query_floats());
        require_ok(cache.prefill(seq, l, data.input(l, 0, token), out));
    }
    std::vector<float> last(data.query_floats());
    for (; token < 600; ++token) {
        for (std::size_t l = 0; l < small.layers; ++l) {
            // Some read of the call, among those of attention or of what joins behind it.
            f.fail_read.first = f.reads.load() + token * 7 % 90;
            kvtl::status s = cache.attend(seq, l, data.input(l, token), last);
            f.fail_read.first = kvtl::io_faults::never;
            if (!s.ok()) ++failures;
            if (!s.ok()) s = cache.attend(seq, l, data.input(l, token), last);
            require_ok(s);
            if (token % 50 != 0) continue;
            const auto& dense = reference.attention(l, token);
            for (std::size_t i = 0; i < last.size(); ++i)
                CHECK(std::fabs(static_cast<double>(last[i]) - dense[i]) < 1e-5 * (10 + std::fabs(dense[i])));
        }
        if (token % 20 == 0) static_cast<void>(gaps(cache, *c.io.inner.log, data));
    }
    CHECK(failures > 5);
    CHECK(gaps(cache, *c.io.inner.log, data) > 0);
    CHECK(cache.stats().splits > 5);
}

TEST_CASE("writes that fail keep what moved in memory until they are tried again") {
    auto c = config_for<packed_rows>(700, 72);
    auto& f = *c.io.faults;
    const drift data(small, c.max_tokens, 9, {.numbered = true});
    auto cache = open_cache<packed_rows>(c);
    const auto seq = *cache.begin();
    std::size_t failures = 0;
    std::vector<float> out(300 * data.query_floats());
    for (std::size_t l = 0; l < small.layers; ++l)
        require_ok(cache.prefill(seq, l, data.input(l, 0, 300), out));
    out.resize(data.query_floats());
    for (std::size_t t = 300; t < 400; ++t)
        for (std::size_t l = 0; l < small.layers; ++l) {
            f.fail_write.first = f.writes.load() + t % 7;
            require_ok(cache.attend(seq, l, data.input(l, t), out)); // what fails is seen by the next call
            cache.inspect(0).store().settle_all_writes(cache.inspect(0).store().pool_of(0));
            f.fail_write.first = kvtl::io_faults::never;
            if (cache.inspect(0).store().has_failed_writes(cache.inspect(0).store().pool_of(0))) ++failures;
            require_ok(cache.retry_writes(seq));
            REQUIRE(gaps(cache, *c.io.inner.log, data) == 0);
        }
    CHECK(failures > 10);
}

} // namespace manager_packed_stream_test
