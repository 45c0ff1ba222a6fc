// An open cache takes less memory and more again: what it holds is as before, the system has the rest, and what cannot be
// leaves everything as it was.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/low_rank.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp" // scratch_folder
#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"
#include "support/on_device.hpp"

#include <sys/mman.h>

namespace manager_resize_test {

using namespace kvtl_test;

namespace {
using any_model = kvtl::geometry<kvtl::shape{}>;
constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t max_tokens = 1000;

template <class Preset>
using in_memory_cache =
    kvtl::kv_manager<without_file<Preset>, any_model, kvtl::supplied_for<without_file<Preset>>>;

const std::string& bases() {
    static const scratch_folder folder;
    static const std::string path = [] {
        const std::string file = folder.file("bases.cal");
        write_calibration(file, model, 128, 5);
        return file;
    }();
    return path;
}

template <class Cache> typename Cache::config roomy(std::size_t more = std::size_t{1} << 20) {
    typename Cache::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = 96;
    if (contains(kvtl::needed_signals<typename Cache::preset>(), kvtl::signal::calibration))
        c.calibration = bases();
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    c.memory_bytes = least_memory<Cache>(c) + more;
    return c;
}

/// The least that resize() accepts: it says so when it is given too little.
template <class Cache> std::size_t fewest(Cache& cache) {
    const kvtl::status s = cache.resize(1);
    REQUIRE_FALSE(s.ok());
    CHECK(s.code() == kvtl::errc::bound_too_small);
    const std::string text(s.what()), before = "memory_bytes is 1; valid: ";
    const std::size_t at = text.find(before);
    REQUIRE_MESSAGE(at != std::string::npos, text);
    return std::stoull(text.substr(at + before.size()));
}

/// Of the system's pages that the frames lie in, those that have memory.
template <class Cache> std::size_t pages_with_memory(Cache& cache) {
    std::size_t n = 0;
    for (unsigned shard = 0; shard < cache.shards(); ++shard)
        for (auto& pool : cache.inspect(shard).store().pools()) {
            const std::size_t page = kvtl::system_page();
            const auto first = reinterpret_cast<std::uintptr_t>(pool.bytes(0)) / page * page;
            const auto end = reinterpret_cast<std::uintptr_t>(pool.bytes(0)) +
                             std::size_t{pool.own()} * pool.frame_bytes();
            std::vector<unsigned char> there((end - first + page - 1) / page);
            REQUIRE(mincore(reinterpret_cast<void*>(first), end - first, there.data()) == 0);
            for (const unsigned char t : there) n += t & 1U;
        }
    return n;
}
} // namespace

TEST_CASE_TEMPLATE("a cache of any size attends what it was given", Preset, kvtl::presets::dynakv,
                   kvtl::presets::dynakv_sequence_order, kvtl::presets::quest, kvtl::presets::pqcache,
                   kvtl::presets::kvswap_lr) {
    using cache_type = in_memory_cache<Preset>;
    auto c = roomy<cache_type>();
    c.attend_tokens = max_tokens + 1; // everything, so that nothing may be lost
    c.max_sequences = 3;
    if constexpr (requires { c.compressor.share; }) c.compressor.share = 1; // of all directions: rotations
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    const std::size_t all = cache.stats().bytes_by_part.total(), least = fewest(cache);
    REQUIRE(least < all);
    reader<cache_type> one(cache, data, 5), two(cache, data, 5);
    one.prefill(400);
    two.decode(100);
    const auto attends_all = [&] {
        for (int i = 0; i < 20; ++i) one.decode(1), two.decode(1);
    };
    attends_all();
    for (const std::size_t bytes : {(all + least) / 2, least, c.memory_bytes, least, all}) {
        CAPTURE(bytes);
        require_ok(cache.resize(bytes));
        CHECK(cache.stats().bytes_by_part.total() <= bytes);
        attends_all();
        CHECK(cache.stats().resident_bytes_peak <= bytes);
    }
    two.prefill(150); // a further turn
    require_ok(cache.resize(least));
    reader<cache_type> three(cache, data, 5);
    three.prefill(300, 128); // and a prompt in what is left
    three.decode(30);
    attends_all();
    one.check_tokens(), two.check_tokens(), three.check_tokens();
    const double few_digits =
        std::is_same_v<Preset, kvtl::presets::kvswap_lr> ? .5 : 2e-3; // a basis of the prompt
    CHECK(std::max({one.error(), two.error(), three.error()}) < few_digits);
}

TEST_CASE("memory that is given up is the system's, and comes back with the next resize") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    auto c = roomy<cache_type>(std::size_t{2} << 20);
    c.lend_tables = false;
    c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{2} << 20);
    const drift data(model, max_tokens, 4);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(700);
    one.decode(60);
    const std::size_t before = pages_with_memory(cache), all = cache.stats().bytes_by_part.total();
    require_ok(cache.resize(all - (std::size_t{1} << 20)));
    const kvtl::statistics now = cache.stats();
    CHECK(now.bytes_by_part.frames + now.bytes_by_part.tails >=
          pages_with_memory(cache) * kvtl::system_page());
    CHECK(now.bytes_by_part.total() <= all - (std::size_t{1} << 20));
    CHECK(pages_with_memory(cache) < before);
    one.decode(100);
    CHECK(cache.stats().bytes_by_part.frames + now.bytes_by_part.tails >=
          pages_with_memory(cache) * kvtl::system_page());
    const auto misses = [&](std::size_t steps) {
        const auto from = cache.stats();
        one.decode(steps);
        const auto to = cache.stats();
        return (to.chosen_bytes - from.chosen_bytes) -
               (to.resident_chosen_bytes - from.resident_chosen_bytes);
    };
    require_ok(cache.resize(fewest(cache)));
    static_cast<void>(misses(10));
    const auto with_few = misses(20);
    require_ok(cache.resize(all));
    CHECK(cache.stats().bytes_by_part.total() == all);
    static_cast<void>(misses(10));
    CHECK(misses(20) < with_few);
}

TEST_CASE("what tables lend is lent again, and counts where it comes from") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    auto c = roomy<cache_type>();
    c.max_tokens = 16000; // tables for many units
    c.attend_tokens = 400;
    c.clusterer.threshold_scale = 0.05F;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, 1700, 7);
    auto cache = open_cache<cache_type>(c);
    reader<cache_type> one(cache, data, 0);
    one.prefill(1500, 600);
    one.decode(20);
    REQUIRE(cache.stats().borrowed_bytes > 0);
    const std::size_t least = fewest(cache);
    require_ok(cache.resize(least));
    CHECK(cache.stats().borrowed_bytes == 0);
    one.decode(100);
    CHECK(cache.stats().borrowed_bytes > 0);
    CHECK(cache.inspect(0).store().pools()[0].in_use() > cache.inspect(0).store().pools()[0].there());
    CHECK(cache.stats().resident_bytes_peak <= least);
}

TEST_CASE("what cannot be said names what may be") {
    auto cache =
        open_cache<in_memory_cache<kvtl::presets::dynakv>>(roomy<in_memory_cache<kvtl::presets::dynakv>>());
    const std::size_t least = fewest(cache), all = cache.stats().bytes_by_part.total();
    for (const std::size_t bytes : {std::size_t{0}, least - 1, all + (std::size_t{1} << 30)}) {
        const kvtl::status s = cache.resize(bytes);
        REQUIRE_FALSE(s.ok());
        CHECK(s.code() == (bytes < least ? kvtl::errc::bound_too_small : kvtl::errc::out_of_range));
        CHECK(std::string(s.what()).find(std::to_string(bytes) + "; valid: " + std::to_string(least)) !=
              std::string::npos);
        CHECK(cache.stats().bytes_by_part.total() == all);
    }
    const auto unsupported = [](auto& other, const char* why) {
        const kvtl::status s = other.resize(1 << 20);
        REQUIRE_FALSE(s.ok());
        CHECK(s.code() == kvtl::errc::unsupported);
        CHECK_MESSAGE(std::string(s.what()).find(why) != std::string::npos, std::string(s.what()));
    };
    auto kept = open_cache<in_memory_cache<kvtl::presets::snapkv_group>>(
        roomy<in_memory_cache<kvtl::presets::snapkv_group>>());
    unsupported(kept, "nothing of this cache lies on storage");
    auto in_turn = open_cache<in_memory_cache<kvtl::presets::dynakv_virtualised>>(
        roomy<in_memory_cache<kvtl::presets::dynakv_virtualised>>());
    unsupported(in_turn, "in turn");
}

TEST_CASE("while a thread is in a shard nothing is resized") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    auto c = roomy<cache_type>();
    c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    auto cache = open_cache<cache_type>(c);
    const std::size_t all = cache.stats().bytes_by_part.total(), least = fewest(cache);
    REQUIRE_FALSE(cache.inspect(1).busy.test_and_set());
    const kvtl::status s = cache.resize(least);
    CHECK(s.code() == kvtl::errc::busy);
    CHECK(std::string(s.what()).find("shard 1") != std::string::npos);
    CHECK(cache.stats().bytes_by_part.total() == all);
    cache.inspect(1).busy.clear();
    require_ok(cache.resize(least));
}

TEST_CASE("tails that cannot be written leave the cache as large as it was") {
    using cache_type =
        kvtl::kv_manager<f32_on<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>, any_model>;
    auto c = roomy<cache_type>();
    c.window_tokens = 8;
    c.clusterer.buffer_entries = 6;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    const drift data(model, max_tokens, 5);
    auto cache = open_cache<cache_type>(c);
    const std::size_t all = cache.stats().bytes_by_part.total(), least = fewest(cache);
    reader<cache_type> one(cache, data, 3);
    one.prefill(400);
    one.decode(61);
    REQUIRE_FALSE(cache.inspect(0).store().pools()[0].tails().empty());
    c.io.faults->fail_write.first = c.io.faults->writes.load();
    c.io.faults->fail_write.count = kvtl::io_faults::never;
    const kvtl::status s = cache.resize(least);
    CHECK(s.code() == kvtl::errc::writes_pending);
    CHECK(cache.stats().bytes_by_part.total() == all);
    c.io.faults->fail_write.first = kvtl::io_faults::never;
    require_ok(cache.retry_writes(one.id()));
    require_ok(cache.resize(least));
    one.decode(60);
    one.check_tokens();
}

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
TEST_CASE("a device that has pinned the frames lets go of them, and pins them again") {
    using cache_type = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::any_io>, any_model>;
    const scratch_folder folder;
    typename cache_type::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = max_tokens + 1;
    c.io = kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("resize.kv")});
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 6);
    auto cache = open_cache<cache_type>(c);
    const bool pinned = cache.facts().registered_arena;
    const std::size_t all = cache.stats().bytes_by_part.total(), least = fewest(cache);
    reader<cache_type> one(cache, data, 5);
    one.prefill(400);
    one.decode(20);
    for (const std::size_t bytes : {least, all, least}) {
        require_ok(cache.resize(bytes));
        CHECK(cache.facts().registered_arena == (pinned && bytes == all));
        one.decode(60);
    }
    CHECK(one.error() < 2e-3);
}
#endif

} // namespace manager_resize_test
