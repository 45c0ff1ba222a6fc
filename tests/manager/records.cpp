// Records on their way through the stores: what a cache of an encoding compressor holds is, entry by entry,
// what the codec makes of the row that arrived, however often the entry has moved since. With records of one
// size (int8_row), and with ragged ones, some of which every encoding wears.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/heavy_hitters.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "contracts/compressor.hpp"
#include "support/cache_fixture.hpp"
#include "support/entry_walk.hpp"
#include "support/leading_numbers.hpp"
#include "support/on_device.hpp"
#include "support/recording_io.hpp"

#include <memory>

namespace manager_records_test {

using namespace kvtl_test;

namespace {

template <class Preset, class Codec> using cache_as = kvtl::kv_manager<on_device<Preset, recording, Codec>>;

template <class Preset, class Codec> struct rows_as : Preset { using compressor = Codec; };

struct head_runs : kvtl::presets::full {
    static constexpr std::uint32_t window_tokens = 24;
    static constexpr std::uint32_t sink_tokens = 2;
    using clusterer = kvtl::head_groups<8>;
};
struct layer_runs : head_runs {
    using clusterer = kvtl::layer_groups<4>;
};
struct long_runs : head_runs { ///< longer than a page
    using clusterer = kvtl::head_groups<64>;
};

/// Rows that end in zeros; numbered: told apart by the first number of their values.
drift cut_rows(const kvtl::shape& s, std::size_t tokens, std::uint64_t seed, bool numbered) {
    drift_config c;
    c.cut = true;
    c.numbered = numbered;
    return {s, tokens, seed, c};
}

template <class Cache> typename Cache::config small(std::size_t tokens, std::shared_ptr<io_log> log) {
    typename Cache::config c;
    c.shape = {2, 4, 2, 64};
    c.max_tokens = tokens;
    c.attend_tokens = tokens;
    c.io.log = std::move(log);
    c.memory_bytes = std::size_t{64} << 20;
    return c;
}
} // namespace

TEST_CASE("the ragged test codec keeps a compressor's promises") {
    compressor_contract<leading_numbers>();
}

TEST_CASE_TEMPLATE("units hold what was encoded once, through splits, appends and rewrites", Codec,
                   kvtl::int8_row<float>, worn_numbers) {
    using cache_type = cache_as<kvtl::presets::dynakv, Codec>;
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        const auto log = std::make_shared<io_log>();
        auto c = small<cache_type>(1300, log);
        c.attend_tokens = smallest ? 200 : c.max_tokens;
        c.memory_bytes = smallest ? least_memory<cache_type>(c) : c.memory_bytes;
        const drift data = cut_rows(c.shape, c.max_tokens, 11, true);
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> one(cache, data, 0);
        const auto look = [&] {
            kvtl::shard_access::of(cache, 0).store().io().poll(false);
            for (std::uint32_t layer = 0; layer < c.shape.layers; ++layer)
                for (std::uint32_t head = 0; head < c.shape.kv_heads; ++head) {
                    const lane_content found = look_at(cache, *log, data, layer, head);
                    REQUIRE(found.complete());
                    REQUIRE(found.keys_fit);
                    REQUIRE(found.frames_agree);
                    REQUIRE(found.counts_agree);
                }
        };
        one.prefill(700, 250);
        look();
        for (int i = 0; i < 10; ++i) {
            one.decode(40);
            look();
        }
        one.prefill(150);
        look();
        CHECK(cache.stats().splits > 20);
        CHECK(cache.stats().tail_rewrites + cache.stats().delayed_splits > 0);
    }
}

TEST_CASE("a lane that was sequential at first is grouped anew without encoding anything again") {
    using cache_type = cache_as<kvtl::presets::dynakv, worn_numbers>;
    const auto log = std::make_shared<io_log>();
    const auto c = small<cache_type>(700, log);
    const drift data = cut_rows(c.shape, c.max_tokens, 12, true);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(30);
    one.decode(640);
    kvtl::shard_access::of(cache, 0).store().io().poll(false);
    const lane_content found = look_at(cache, *log, data, 1, 1);
    CHECK(found.complete());
    CHECK(found.keys_fit);
    CHECK(kvtl::shard_access::of(cache, 0).store().at(lane_id(c.shape, 0, 1, 1)).state().clustered);
}

TEST_CASE_TEMPLATE("ragged records: everything attended is dense attention, in fewer bytes", Preset,
                   kvtl::presets::dynakv, kvtl::presets::dynakv_unit_contiguous, layer_runs, long_runs) {
    using ragged = cache_as<Preset, leading_numbers>;
    using plain = cache_as<Preset, kvtl::raw<float>>;
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        const auto run = [&]<class Cache>(Cache*, std::size_t compare_every) {
            const auto log = std::make_shared<io_log>();
            auto c = small<Cache>(800, log);
            c.memory_bytes = smallest ? least_memory<Cache>(c) : c.memory_bytes;
            const drift data = cut_rows(c.shape, c.max_tokens, 13, false);
            auto cache = open_cache<Cache>(c);
            for (int round = 0; round < 2; ++round) { // the second time everything is used anew
                reader<Cache> one(cache, data, compare_every);
                one.prefill(450, 120);
                one.decode(110);
                one.prefill(80);
                one.decode(20);
                one.check_tokens();
                if (compare_every != 0) CHECK(one.error() < exact);
                one.end();
            }
            CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
            return cache.stats();
        };
        const kvtl::statistics a = run(static_cast<ragged*>(nullptr), 9);
        const kvtl::statistics b = run(static_cast<plain*>(nullptr), 0);
        // Half of every head's row is zeros, of several heads' that of the last; a row's count takes 4 bytes.
        const std::uint64_t most = ragged::types::unit_of == kvtl::granularity::layer ? 8 : 6;
        CHECK(a.chosen_bytes < b.chosen_bytes * most / 10);
        CHECK(a.chosen_bytes > b.chosen_bytes * 4 / 10);
        if (!smallest) CHECK(a.written_bytes < b.written_bytes * 9 / 10); // staged chunks are plain
    }
}

TEST_CASE_TEMPLATE("rows in memory may be ragged too", Preset, kvtl::presets::snapkv_group,
                   kvtl::presets::h2o) {
    const kvtl::shape shape{2, 4, 2, 64};
    const drift data = cut_rows(shape, 500, 14, false);
    const auto run = [&]<class Cache>(Cache*) {
        typename Cache::config c;
        c.shape = shape;
        c.max_tokens = 500;
        c.keep_tokens = 100;
        c.prefill_tokens = 400;
        c.memory_bytes = std::size_t{16} << 20;
        auto cache = open_cache<Cache>(c);
        reader<Cache> one(cache, data, 0);
        one.prefill(400, 150);
        one.decode(60);
        return one.outputs();
    };
    using ragged = kvtl::kv_manager<rows_as<Preset, leading_numbers>>;
    using plain = kvtl::kv_manager<rows_as<Preset, kvtl::raw<float>>>;
    const auto a = run(static_cast<ragged*>(nullptr)), b = run(static_cast<plain*>(nullptr));
    REQUIRE(a.size() == b.size());
    oracle::largest_error error;
    for (std::size_t i = 0; i < a.size(); ++i)
        error.see(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    CHECK(error.value() < exact);
}

} // namespace manager_records_test
