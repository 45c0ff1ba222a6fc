// The bits of the output depend on the input and on the configuration: not on the device, not on how fast or
// in which order it completes, and not on threads.
// SPDX-License-Identifier: MIT
#include <kvtl/io/backends.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

namespace manager_backends_test {

using namespace kvtl_test;

namespace {

template <class Preset> using switched = on_device<Preset, kvtl::any_io>;
template <class Preset> using delayed = on_device<Preset, kvtl::faulty<kvtl::in_memory>>;
constexpr kvtl::shape small{2, 6, 3, 64};

template <class Cache> typename Cache::config tight() {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 420;
    c.attend_tokens = 96;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
#if defined(__SANITIZE_THREAD__)
    c.read_through_pages =
        0; // gaps go to one page that nobody reads; that two workers fill it at once is no race
#endif
    return c;
}

struct run_result {
    std::vector<float> outputs;
    kvtl::statistics stats;
    std::string device;
};

template <class Cache> run_result run(typename Cache::config c) {
    const std::size_t memory = least_memory<Cache>(c);
    c.memory_bytes = memory;
    const drift data(small, c.max_tokens, 11);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.decode(90); // the lanes are clustered on the way
    one.prefill(60);
    one.decode(100);
    one.end();
    reader<Cache> two(cache, data, 0); // and once more from a prompt, where the first has been
    two.prefill(150, 64);
    two.decode(120);
    std::vector<float> all = one.outputs();
    all.insert(all.end(), two.outputs().begin(), two.outputs().end());
    return {std::move(all), cache.stats(), cache.device_info().name};
}

/// What was decided must not depend on the device either.
void same(const run_result& a, const run_result& b) {
    CAPTURE(a.device);
    CAPTURE(b.device);
    CHECK(same_bits(a.outputs, b.outputs));
    CHECK(a.stats.splits == b.stats.splits);
    CHECK(a.stats.delayed_splits == b.stats.delayed_splits);
    CHECK(a.stats.forced_loads == b.stats.forced_loads);
    CHECK(a.stats.chosen_bytes == b.stats.chosen_bytes);
    CHECK(a.stats.resident_chosen_bytes == b.stats.resident_chosen_bytes);
    CHECK(a.stats.tail_rewrites == b.stats.tail_rewrites);
}

template <class Preset> void on_every_device() {
    using cache = kvtl::kv_manager<switched<Preset>>;
    using slow = kvtl::kv_manager<delayed<Preset>>;
    const scratch_folder folder;
    auto c = tight<cache>();
    c.io = kvtl::any_backend({.use = kvtl::backend::memory});
    const run_result memory = run<cache>(c);
    CHECK(memory.stats.splits > 20);
    CHECK(memory.stats.hit_rate() < 0.9); // little fits
    c.io = kvtl::any_backend({.use = kvtl::backend::posix, .path = folder.file("posix.kv")});
    same(memory, run<cache>(c));
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
    c.io = kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("uring.kv")});
    same(memory, run<cache>(c));
#endif
    for (const unsigned hold : {40U, 99U}) {
        auto d = tight<slow>();
        d.io.faults = std::make_shared<kvtl::io_faults>();
        d.io.faults->hold_percent = hold;
        d.io.seed = hold;
        same(memory, run<slow>(d));
    }
}

} // namespace

TEST_CASE("dynakv gives the same bits on every device") {
    on_every_device<kvtl::presets::dynakv>();
}

#if !defined(__SANITIZE_THREAD__) // which knows of no thread that fork() leaves behind
TEST_CASE(
    "a child of fork() may destroy what it has of a cache: file, lock and transfers stay the parent's") {
    using cache_t = kvtl::kv_manager<switched<kvtl::presets::dynakv>>;
    const drift data(small, 420, 12);
    for (const kvtl::backend use : {kvtl::backend::posix, kvtl::backend::uring}) {
#if !defined(KVTL_HAS_URING) || !KVTL_HAS_URING
        if (use == kvtl::backend::uring) continue;
#endif
        CAPTURE(static_cast<int>(use));
        const scratch_folder folder;
        auto c = tight<cache_t>();
        c.memory_bytes = least_memory<cache_t>(c);
        c.io = kvtl::any_backend({.use = use, .path = folder.file("fork.kv")});
        std::optional<cache_t> cache(open_cache<cache_t>(c));
        reader<cache_t> one(*cache, data, 0);
        one.prefill(150);
        for (std::size_t l = 0; l < small.layers; ++l) // reads are on their way
            require_ok(cache->prefetch(one.id(), l, data.q(l, 150)));
        const ::pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::alarm(60);
            cache.reset();
            ::_exit(0);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "status ", status);
        const auto second = cache_t::open(c);
        REQUIRE(!second.ok());
        CHECK(second.error().code == kvtl::errc::file_refused);
        one.decode(40);
        one.check_tokens();
    }
}
#endif

TEST_CASE("two shards give the same bits from one thread and from two") {
    using cache_t = kvtl::kv_manager<switched<kvtl::presets::dynakv>>;
    const scratch_folder folder;
    const drift data(small, 420, 11);
    std::vector<std::vector<float>> outputs;
    for (const bool threads : {false, true}) {
        auto c = tight<cache_t>();
        c.shards = 2;
        c.memory_bytes = least_memory<cache_t>(c);
        c.io = kvtl::any_backend({.use = kvtl::backend::posix, .path = folder.file("shards.kv")});
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        std::vector<float> all(420 * small.layers * data.query_floats(), NAN);
        std::vector<int> failures(2, 0);
        const auto work = [&](unsigned shard) {
            std::size_t at = 0;
            for (std::size_t t = 0; t < 300;) {
                const std::size_t some = t < 150 ? 50 : 1;
                for (std::size_t l = 0; l < small.layers; ++l) {
                    const std::span<float> out(all.data() + at, some * data.query_floats());
                    at += out.size();
                    auto in = data.input(l, t, some);
                    in.last_chunk = t == 100;
                    const kvtl::status s = t < 150 ? cache.prefill(seq, l, in, out, shard)
                                                   : cache.attend(seq, l, in, out, shard);
                    failures[shard] += s.ok() ? 0 : 1;
                }
                t += some;
            }
        };
        if (threads) {
            std::thread other(work, 1U);
            work(0);
            other.join();
        } else {
            work(0);
            work(1);
        }
        CHECK(failures == std::vector<int>{0, 0});
        all.resize(300 * small.layers * data.query_floats());
        CHECK(std::none_of(all.begin(), all.end(), [](float x) { return std::isnan(x); }));
        outputs.push_back(std::move(all));
    }
    CHECK(same_bits(outputs[0], outputs[1]));
}

} // namespace manager_backends_test
