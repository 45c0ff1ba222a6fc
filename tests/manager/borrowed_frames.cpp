// Tables of units lend what units have not reached to frames: never more than that, less as units are added, and what
// frames hold of it is as good as any other frame.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/retroinfer.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/recording_io.hpp"

#include <sys/mman.h>

#include <numeric>

namespace manager_borrowed_frames_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{2, 4, 2, 64};

template <class Preset> using cache_of = kvtl::kv_manager<on_device<Preset, recording>>;
using faulty_cache = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;

/// Tables for 4,000 clusters a lane, of which a prompt of 1,500 tokens makes some 200, and little else.
template <class Cache> typename Cache::config config_for(std::size_t frames_more) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = 16000;
    c.attend_tokens = 400;
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    if constexpr (requires { c.clusterer.threshold_scale; }) c.clusterer.threshold_scale = 0.05F;
    c.memory_bytes = least_memory<Cache>(c) + frames_more * 4096;
    return c;
}

/// Of the system's pages that `part` covers wholly, those that have memory.
std::size_t resident_pages(std::span<std::byte> part) {
    const std::size_t page = kvtl::system_page();
    std::vector<unsigned char> there(part.size() / page);
    if (there.empty()) return 0;
    REQUIRE(mincore(part.data(), part.size(), there.data()) == 0);
    return static_cast<std::size_t>(
        std::count_if(there.begin(), there.end(), [](auto b) { return (b & 1) != 0; }));
}

constexpr std::uint32_t lanes_of(std::uint32_t sequences) {
    return sequences * model.layers * model.kv_heads;
}

struct use {
    std::size_t tables = 0;   ///< whole pages that are reserved for lanes and have memory
    std::size_t all = 0;      ///< whole pages that are reserved for lanes
    std::size_t borrowed = 0; ///< pages of borrowed frames that have memory
    std::size_t frames = 0;   ///< borrowed frames
};
template <class Cache> use use_of(Cache& cache, std::uint32_t lanes, unsigned shard = 0) {
    auto& store = kvtl::shard_access::of(cache, shard).store();
    const std::size_t page = kvtl::system_page();
    use u;
    for (std::uint32_t i = shard; i < lanes; i += lanes_of(1)) {
        const std::span<std::byte> all = store.lanes().region_of(i).memory;
        const std::size_t skew = -reinterpret_cast<std::uintptr_t>(all.data()) % page;
        const std::span<std::byte> whole = all.subspan(skew, (all.size() - skew) / page * page);
        u.all += whole.size() / page;
        u.tables += resident_pages(whole);
    }
    for (auto& pool : store.pools()) {
        u.frames += pool.borrowed();
        for (std::uint32_t f = pool.own(); f < pool.size(); ++f)
            u.borrowed += resident_pages({pool.bytes(f), pool.frame_bytes()});
    }
    return u;
}

} // namespace

TEST_CASE_TEMPLATE("frames and tables together have no more memory than was reserved for tables", Preset,
                   kvtl::presets::dynakv, kvtl::presets::retroinfer) {
    using cache_type = cache_of<Preset>;
    const auto c = config_for<cache_type>(40);
    const drift data(model, 1500 + 401, 7);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    CHECK(use_of(cache, lanes_of(1)).frames == 0);
    one.prefill(1500, 600);
    CHECK(use_of(cache, lanes_of(1)).frames == 0); // tables are as long as a prompt may need them
    one.decode(1);
    use before = use_of(cache, lanes_of(1));
    REQUIRE(before.frames > 100);
    std::size_t most_touched = 0;
    for (std::size_t t = 0; t < 400; t += 20) {
        one.decode(20);
        const use now = use_of(cache, lanes_of(1));
        CHECK(now.tables + now.borrowed <= now.all);
        CHECK(now.tables + now.frames <= now.all); // whatever of them will be touched
        most_touched = std::max(most_touched, now.borrowed);
        before = now;
    }
    CHECK(most_touched > 20); // they were of use
    CHECK(cache.stats().borrowed_bytes == before.frames * 4096);
    CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
}

TEST_CASE("a step that attends everything by way of borrowed frames is dense attention") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(0);
    c.attend_tokens = c.max_tokens + 1;
    c.memory_bytes = least_memory<cache_type>(c);
    const drift data(model, 900 + 60, 8);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data);
    one.prefill(900);
    one.decode(60);
    CHECK(one.error() < 2e-3); // keys are stored as f16
    CHECK(use_of(cache, lanes_of(1)).borrowed > 20);
}

TEST_CASE("nothing is lent where lend_tables is false, and the frames of their own are as many") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(40);
    const drift data(model, 1500 + 60, 7);
    auto lending = open_cache<cache_type>(c);
    c.lend_tables = false;
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(1500, 600);
    one.decode(60);
    const auto& pool = kvtl::shard_access::of(cache, 0).store().pools()[0];
    CHECK(pool.size() == pool.own()); // no records of frames that never come
    CHECK(pool.own() >= kvtl::shard_access::of(lending, 0).store().pools()[0].own());
    CHECK(cache.stats().borrowed_bytes == 0);
}

TEST_CASE("tables that grow get their memory back") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(0);
    c.max_tokens = 2908, c.centroid_bits = 32, c.clusterer.tokens_per_cluster = 12;
    c.clusterer.threshold_scale = 1e-3F; // whatever comes splits what it joins
    c.memory_bytes = least_memory<cache_type>(c) + 400 * 4096;
    const drift data(model, 2900, 9);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(600);
    one.decode(1);
    const std::size_t first = use_of(cache, lanes_of(1)).frames;
    REQUIRE(first > 20);
    while (one.tokens() < 2801) {
        one.decode(100);
        const use now = use_of(cache, lanes_of(1));
        REQUIRE(now.tables + now.frames <= now.all);
    }
    CHECK(use_of(cache, lanes_of(1)).frames < first - 8);
    CHECK(cache.stats().splits > 500);
}

TEST_CASE("sequences that share a pool lend to each other, and take back when a prompt comes or one ends") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(0);
    c.max_sequences = 2, c.share = true;
    c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
    const drift data(model, 1500, 10);
    auto cache = open_cache<cache_type>(c);
    const auto check = [&] {
        const use now = use_of(cache, lanes_of(2));
        CHECK(now.tables + now.borrowed <= now.all);
        CHECK(now.tables + now.frames <= now.all);
        return now;
    };
    reader<cache_type> one(cache, data, 0);
    one.prefill(800);
    one.decode(50);
    const use alone = check();
    CHECK(alone.frames > 100);
    for (int again = 0; again < 3; ++again) {
        reader<cache_type> two(cache, data, 0);
        two.prefill(700, 300);
        check();
        for (int i = 0; i < 10; ++i) one.decode(5), two.decode(5);
        check();
        require_ok(cache.end(two.id()));
        one.decode(5);
        check();
    }
    reader<cache_type> token_by_token(cache, data, 0);
    token_by_token.decode(100); // its tables begin with no row, and all their memory is borrowed
    check();
    const kvtl::lane_state& now = kvtl::shard_access::of(cache, 0).store().at(lanes_of(1)).state();
    CHECK_FALSE(now.clustered);
    CHECK(now.units > 0);
    CHECK(now.tokens == 100);
}

TEST_CASE(
    "tables that grow for one sequence grow for one that shares its frames, and both stay what they are") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(0);
    c.max_tokens = 2908, c.centroid_bits = 32, c.clusterer.tokens_per_cluster = 12;
    c.clusterer.threshold_scale = 1e-3F; // whatever comes splits what it joins
    c.max_sequences = 2, c.share = true;
    c.attend_tokens = c.max_tokens + 1;
    c.memory_bytes = least_memory<cache_type>(c) + 400 * 4096;
    const drift data(model, 2900, 16);
    auto cache = open_cache<cache_type>(c);
    auto& lanes = kvtl::shard_access::of(cache, 0).store().lanes();
    const auto reference = std::make_shared<dense_reference<cache_type::element_type>>(data);
    reader<cache_type> one(cache, data, 50, reference), two(cache, data, 50, reference);
    one.prefill(600);
    two.prefill(600);
    two.decode(40);
    const auto rows_of = [&](std::uint32_t sequence) {
        return lanes.region_of(sequence * lanes_of(1)).at.rows;
    };
    std::size_t grown = 0; // both, in calls of one of them
    const auto decode = [&](reader<cache_type>& r, std::size_t tokens) {
        const std::uint32_t of_one = rows_of(0), of_two = rows_of(1);
        r.decode(tokens);
        if (rows_of(0) > of_one && rows_of(1) > of_two) ++grown;
        const use now = use_of(cache, lanes_of(2));
        REQUIRE(now.tables + now.frames <= now.all);
    };
    while (one.tokens() < 2600) decode(one, 20), decode(two, 10);
    CHECK(grown > 0);
    two.decode(100);
    CHECK(one.error() < 2e-3);
    CHECK(two.error() < 2e-3);
}

TEST_CASE("large tables lend large pages, each shard its own") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(0);
    c.max_tokens = 400'000;
    c.max_sequences = 2, c.share = true, c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
    const drift data(model, 1000, 15);
    auto cache = open_cache<cache_type>(c);
    constexpr std::size_t large = kvtl::reservation::large_page;
    const auto check = [&] {
        for (const unsigned shard : {0U, 1U}) {
            CAPTURE(shard);
            const use now = use_of(cache, lanes_of(2), shard);
            CHECK(now.tables + now.frames <= now.all);
            CHECK(now.frames > 0);
            auto& store = kvtl::shard_access::of(cache, shard).store();
            const auto& region = store.lanes().region_of(shard);
            if (kvtl::system_page() == 4096) CHECK(region.lent_page == large);
            CHECK(region.spare() % region.lent_page == 0);
            const auto& pool = store.pools()[0];
            CHECK(pool.borrowed() * std::size_t{pool.frame_bytes()} % region.lent_page == 0);
            CHECK(reinterpret_cast<std::uintptr_t>(pool.bytes(pool.own())) % region.lent_page == 0);
        }
    };
    reader<cache_type> one(cache, data);
    one.prefill(500);
    one.decode(5);
    check();
    reader<cache_type> two(cache, data, 0);
    two.prefill(700, 300);
    for (int i = 0; i < 10; ++i) one.decode(5), two.decode(5);
    check();
    require_ok(cache.end(two.id()));
    one.decode(5);
    check();
    CHECK(cache.stats().borrowed_bytes > 8 * large);
}

TEST_CASE("a turn that is appended in one call takes the memory for it back") {
    using cache_type = cache_of<kvtl::presets::dynakv>;
    auto c = config_for<cache_type>(40);
    c.max_tokens = 2400;
    c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
    const drift data(model, 1500, 11);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(700);
    one.decode(1);
    const std::size_t before = use_of(cache, lanes_of(1)).frames;
    one.prefill(700);
    const use now = use_of(cache, lanes_of(1));
    CHECK(now.tables + now.frames <= now.all);
    CHECK(now.frames < before);
}

TEST_CASE(
    "a turn for which frames cannot be emptied is refused before any of it is taken, and may come again") {
    using cache_type = faulty_cache;
    auto c = config_for<cache_type>(40);
    c.max_tokens = 2400;
    c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    const drift data(model, 1500, 11);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(700);
    one.decode(30); // entries that storage has not
    std::vector<float> out(600 * data.query_floats());
    const std::uint64_t failed = c.io.faults->writes.load();
    c.io.faults->fail_write.first = failed, c.io.faults->fail_write.count = 1;
    CHECK(cache.prefill(one.id(), 0, data.input(0, one.tokens(), 600), out).code() ==
          kvtl::errc::writes_pending);
    CHECK(c.io.faults->writes.load() > failed); // to make room for the turn's units
    CHECK(cache.tokens(one.id(), 0) == one.tokens());
    require_ok(cache.retry_writes(one.id()));
    one.prefill(600);
    one.decode(20);
    one.check_tokens();
}

// Of dynakv it does: splits wait for units that are resident.
TEST_CASE_TEMPLATE("no bit depends on whether tables lend", Preset, kvtl::presets::clusterkv,
                   kvtl::presets::retroinfer) {
    using cache_type = cache_of<Preset>;
    const drift data(model, 1700, 14);
    std::vector<float> outputs;
    for (const bool lend : {false, true}) {
        auto c = config_for<cache_type>(40);
        c.max_sequences = 2, c.share = true;
        c.lend_tables = lend;
        c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> other(cache, data, 0);
        other.prefill(600);
        reader<cache_type> one(cache, data, 0);
        one.prefill(500, 200);
        one.decode(200);
        one.prefill(300);
        other.decode(100);
        require_ok(cache.end(other.id()));
        one.decode(500);
        CHECK((cache.stats().borrowed_bytes > 0) == lend);
        if (lend)
            CHECK(same_bits(one.outputs(), outputs));
        else
            outputs = one.outputs();
    }
}

TEST_CASE("who is resident does not depend on how fast the device is") {
    using cache_type = faulty_cache;
    const drift data(model, 1500, 12);
    std::vector<float> outputs;
    std::uint64_t resident = 0;
    for (const unsigned held : {0U, 60U, 98U}) {
        CAPTURE(held);
        auto c = config_for<cache_type>(10);
        c.max_tokens = 6000; // tables that are soon used up
        c.memory_bytes = least_memory<cache_type>(c) + 10 * 4096;
        c.io.faults = std::make_shared<kvtl::io_faults>();
        c.io.faults->hold_percent = held;
        auto cache = open_cache<cache_type>(c);
        reader<cache_type> one(cache, data, 0);
        one.prefill(700);
        one.decode(800);
        const auto s = cache.stats();
        CHECK(s.borrowed_bytes > 0);
        if (held == 0) {
            outputs = one.outputs();
            resident = s.resident_chosen_bytes;
        }
        CHECK(same_bits(one.outputs(), outputs));
        CHECK(s.resident_chosen_bytes == resident);
    }
    CHECK(resident > 0);
}

TEST_CASE("tables of a prompt that failed are lent like others") {
    using cache_type = faulty_cache;
    auto c = config_for<cache_type>(0);
    c.max_sequences = 2, c.share = true;
    c.memory_bytes = least_memory<cache_type>(c) + 40 * 4096;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    const drift data(model, 2400, 13);
    auto cache = open_cache<cache_type>(c);
    const auto check = [&] {
        const use now = use_of(cache, lanes_of(2));
        CHECK(now.tables + now.frames <= now.all);
        return now;
    };
    const auto first = *cache.begin();
    std::vector<float> out(1500 * data.query_floats());
    c.io.faults->fail_write.first = c.io.faults->writes.load() + 2;
    CHECK_FALSE(cache.prefill(first, 0, data.input(0, 0, 1500), out).ok());
    c.io.faults->fail_write.first = kvtl::io_faults::never;
    for (std::size_t t = 0; t < 60; ++t)
        for (std::size_t l = 0; l < model.layers; ++l)
            require_ok(
                cache.attend(first, l, data.input(l, t, 1), std::span(out).first(data.query_floats())));
    CHECK(kvtl::shard_access::of(cache, 0).store().at(0).state().units > 0);
    check();
    reader<cache_type> two(cache, data, 0);
    two.prefill(1800);
    check();
    two.decode(100);
    CHECK(check().frames > 0);
}

namespace {
/// Says that a prompt falls into a quarter of the clusters that it may.
struct understated : kvtl::variance_split {
    static constexpr std::string_view name = "understated";
    struct state : kvtl::variance_split::state {
        using kvtl::variance_split::state::state;
        [[nodiscard]] std::uint32_t max_units(std::uint32_t tokens) const noexcept {
            return kvtl::variance_split::state::max_units(tokens) / 4;
        }
    };
};
} // namespace

TEST_CASE("a clusterer that makes more units than it says is found out before they are anywhere") {
    struct wrong : kvtl::presets::dynakv {
        using clusterer = understated;
        using io = recording;
    };
    using cache_type = kvtl::kv_manager<wrong>;
    auto c = config_for<cache_type>(40);
    const drift data(model, 600, 16);
    auto cache = open_cache<cache_type>(c);
    const auto one = *cache.begin();
    const kvtl::status s = cache.prefill(one, 0, data.input(0, 0, 600), {});
    CHECK(s.code() == kvtl::errc::out_of_range);
    CHECK(std::string(s.what()).find("clusterer understated made") == 0);
    CHECK(cache.tokens(one, 0) == 0);
}

} // namespace manager_borrowed_frames_test
