// An open cache takes less memory and more again: what it holds is as before, the system has the rest, and what cannot be
// leaves everything as it was.
// SPDX-License-Identifier: MIT
#include <kvtl/core/resize_core.hpp>
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/backends.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/io/throttled.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/full.hpp>
#include <kvtl/presets/low_rank.hpp>
#include <kvtl/presets/pqcache.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp" // scratch_folder
#include "support/cache_fixture.hpp"
#include "support/calibrated.hpp"
#include "support/on_device.hpp"
#include "support/wrapped_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace manager_resize_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape model{2, 4, 2, 64};
constexpr std::size_t max_tokens = 1000;

template <class Preset>
using in_memory_cache = kvtl::kv_manager<without_file<Preset>, kvtl::engine_inputs_for<without_file<Preset>>>;

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
    if (contains(kvtl::needed_inputs<typename Cache::preset>(), kvtl::engine_input::calibration))
        c.calibration = bases();
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    c.memory_bytes = least_memory<Cache>(c) + more;
    return c;
}

/// Of the system's pages that the frames lie in, those that have memory.
template <class Cache> std::size_t pages_with_memory(Cache& cache) {
    std::size_t n = 0;
    for (unsigned shard = 0; shard < cache.shards(); ++shard)
        for (auto& pool : kvtl::shard_access::of(cache, shard).store().pools()) {
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
                   kvtl::presets::pqcache, kvtl::presets::kvswap_lr) {
    using cache_type = in_memory_cache<Preset>;
    auto c = roomy<cache_type>();
    c.attend_tokens = max_tokens + 1; // everything, so that nothing may be lost
    c.max_sequences = 3;
    if constexpr (requires { c.compressor.share; }) c.compressor.share = 1; // of all directions: rotations
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 3);
    auto cache = open_cache<cache_type>(c);
    const std::size_t all = cache.stats().bytes_by_part.total(), least = cache.memory().least;
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
    for (const float weight : {1.4F, 0.8F, 1.0F}) { // and with frames of its own for each
        require_ok(cache.set_share(one.id(), weight));
        attends_all();
        require_ok(cache.resize(weight > 1 ? (all + 2 * least) / 3 : all));
        require_ok(cache.prefetch(two.id()));
        attends_all();
        CHECK(cache.stats().resident_bytes_peak <= cache.memory().now);
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
    constexpr std::size_t given_up = std::size_t{3} << 19; // 1.5 MiB: more than nobody has touched
    require_ok(cache.resize(all - given_up));
    const kvtl::statistics now = cache.stats();
    CHECK(now.bytes_by_part.frames + now.bytes_by_part.tails >=
          pages_with_memory(cache) * kvtl::system_page());
    CHECK(now.bytes_by_part.total() <= all - given_up);
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
    require_ok(cache.resize(cache.memory().least));
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
    const std::size_t least = cache.memory().least;
    require_ok(cache.resize(least));
    one.decode(100);
    CHECK(cache.stats().borrowed_bytes > 0);
    CHECK(kvtl::shard_access::of(cache, 0).store().pools()[0].in_use() >
          kvtl::shard_access::of(cache, 0).store().pools()[0].there());
    CHECK(cache.stats().resident_bytes_peak <= least);
}

TEST_CASE("what cannot be says what may be, and nothing has happened") {
    auto cache =
        open_cache<in_memory_cache<kvtl::presets::dynakv>>(roomy<in_memory_cache<kvtl::presets::dynakv>>());
    const kvtl::memory_range may = cache.memory();
    CHECK(may.now == cache.stats().bytes_by_part.total());
    CHECK(may.least < may.now);
    CHECK(may.most >= may.now);
    for (const std::size_t bytes : {std::size_t{0}, may.least - 1, may.most + 1, SIZE_MAX}) {
        const kvtl::status s = cache.resize(bytes);
        REQUIRE_FALSE(s.ok());
        CHECK(s.code() == (bytes < may.least ? kvtl::errc::bound_too_small : kvtl::errc::out_of_range));
        CHECK(std::string(s.what()) == "resize: memory_bytes is " + std::to_string(bytes) + "; valid: " +
                                           std::to_string(may.least) + ", with the fewest frames, to " +
                                           std::to_string(may.most) + ", with which the cache was opened");
        CHECK(cache.memory().now == may.now);
    }
    require_ok(cache.resize(may.most));
    require_ok(cache.resize(may.least));
    CHECK(cache.memory().now == may.least);
    CHECK(cache.memory().least == may.least);
    CHECK(cache.memory().most == may.most);
    require_ok(cache.resize(may.now));
    CHECK(cache.memory().now == may.now);
}

template <class Preset> void refuses(const char* why) {
    using cache_type = in_memory_cache<Preset>;
    auto cache = open_cache<cache_type>(roomy<cache_type>());
    CHECK(cache.memory().least == cache.memory().now);
    const kvtl::status s = cache.resize(cache.memory().now / 2);
    CHECK(s.code() == kvtl::errc::unsupported);
    CHECK_MESSAGE(std::string(s.what()).find(why) != std::string::npos, std::string(s.what()));
}
TEST_CASE("caches whose memory is all in use say so") {
    refuses<kvtl::presets::snapkv_group>("nothing of this cache lies on storage");
    refuses<kvtl::presets::full>("nothing of this cache lies on storage");
    refuses<kvtl::presets::dynakv_virtualised>("in turn");
}

TEST_CASE("while a thread is in a shard nothing is resized") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    auto c = roomy<cache_type>();
    c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    auto cache = open_cache<cache_type>(c);
    const kvtl::memory_range may = cache.memory();
    REQUIRE_FALSE(kvtl::shard_access::of(cache, 1).busy.test_and_set());
    const kvtl::status s = cache.resize(may.least);
    CHECK(s.code() == kvtl::errc::busy);
    CHECK(std::string(s.what()).find("shard 1") != std::string::npos);
    CHECK(cache.memory().now == may.now);
    kvtl::shard_access::of(cache, 1).busy.clear();
    require_ok(cache.resize(may.least));
}

TEST_CASE("unfinished pages move without the device, and a write that has failed is waited for") {
    using cache_type = kvtl::kv_manager<f32_on<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;
    auto c = roomy<cache_type>();
    c.window_tokens = 8;
    c.attend_tokens = max_tokens + 1;
    c.clusterer.pending_entries = 6;
    c.shards = 2;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto& fail = c.io.faults->fail_write;
    fail.count = kvtl::io_faults::never;
    const drift data(model, max_tokens, 5);
    auto cache = open_cache<cache_type>(c);
    const kvtl::memory_range may = cache.memory();
    reader<cache_type> one(cache, data, 3);
    one.prefill(400);
    one.decode(61);
    const auto tails = [&] { return kvtl::shard_access::of(cache, 1).store().pools()[0].tail_count(); };
    const std::uint32_t before = tails();
    REQUIRE(before > 0);
    fail.first = c.io.faults->writes.load();
    const std::uint64_t written = cache.stats().writes;
    require_ok(cache.resize(may.least));
    CHECK(cache.stats().writes == written);
    CHECK(tails() == before);
    require_ok(cache.resize(may.now));
    std::size_t steps = 0; // until a page of a shard is full and cannot be written
    kvtl::status refused;
    for (; refused.ok() && steps < 100; ++steps)
        for (std::size_t l = 0; l < model.layers && refused.ok(); ++l) {
            std::vector<float> out(data.query_floats());
            refused = cache.attend(one.id(), l, one.input(l, one.tokens() + steps, 1), out);
        }
    REQUIRE(refused.code() == kvtl::errc::writes_pending);
    CHECK(cache.resize(may.least).code() == kvtl::errc::writes_pending);
    CHECK(cache.memory().now == may.now);
    fail.first = kvtl::io_faults::never;
    require_ok(cache.retry_writes(one.id()));
    require_ok(cache.resize(may.least));
    require_ok(cache.rewind_to(one.id(), one.tokens() + steps - 1));
    one.advance(steps - 1);
    one.decode(60);
    one.check_tokens();
    CHECK(one.error() < exact);
}

TEST_CASE("what was read ahead, shown or staged does not stand in the way") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    auto c = roomy<cache_type>();
    c.max_sequences = 2;
    c.share = true;
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 9);
    auto cache = open_cache<cache_type>(c), other = open_cache<cache_type>(c);
    const kvtl::memory_range may = cache.memory();
    reader<cache_type> one(cache, data, 0), same(other, data, 0), two(cache, data, 0);
    one.prefill(500), same.prefill(500);
    for (std::size_t l = 0; l < model.layers; ++l) { // a chunk that waits on storage
        auto in = two.input(l, 0, 300);
        in.last_chunk = false;
        std::vector<float> out(300 * data.query_floats());
        require_ok(cache.prefill(two.id(), l, in, out));
    }
    two.advance(300);
    for (int i = 0; i < 20; ++i) {
        require_ok(cache.prefetch(one.id(), 0, data.q(0, one.tokens())));
        require_ok(cache.prefetch(one.id(), 1, data.q(1, one.tokens() - 3))); // a wrong guess
        require_ok(cache.resize(i % 2 == 0 ? may.least : may.now));
        require_ok(cache.select(one.id(), 1, data.q(1, one.tokens()), [](auto&&...) {}));
        require_ok(cache.resize(i % 2 == 0 ? may.now : may.least));
        one.decode(1);
    }
    two.prefill(100);
    two.decode(20);
    one.check_tokens(), two.check_tokens();
    same.decode(20);
    CHECK(one.outputs().size() == same.outputs().size());
}

TEST_CASE_TEMPLATE("caches that drop, slide or belong to several threads", Preset,
                   kvtl::presets::snapkv_then_dynakv, kvtl::presets::dynakv) {
    using cache_type = in_memory_cache<Preset>;
    for (const bool by_sequence : {false, true}) {
        auto c = roomy<cache_type>();
        c.max_sequences = 3;
        c.shards = 2;
        if (by_sequence) c.shard_by = kvtl::division::sequences;
        if (!cache_type::types::drops) c.attention.windows = {0, 64};
        c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
        const drift data(model, max_tokens, 10);
        auto cache = open_cache<cache_type>(c);
        const kvtl::memory_range may = cache.memory();
        reader<cache_type> one(cache, data, 0), two(cache, data, 0), three(cache, data, 0);
        one.prefill(300), two.prefill(200);
        for (const std::size_t bytes : {may.least, may.now, (may.least + may.now) / 2, may.least}) {
            require_ok(cache.resize(bytes));
            one.decode(10), two.decode(10);
            CHECK(cache.stats().resident_bytes_peak <= bytes);
        }
        three.prefill(250);
        three.decode(10);
        one.check_tokens(), two.check_tokens(), three.check_tokens();
    }
}

TEST_CASE("locked memory stays, and so does the cache") {
    using cache_type = in_memory_cache<kvtl::presets::dynakv>;
    const drift data(model, max_tokens, 11);
    auto cache = open_cache<cache_type>(roomy<cache_type>());
    const kvtl::memory_range may = cache.memory();
    reader<cache_type> one(cache, data, 0);
    one.prefill(400);
    auto& pool = kvtl::shard_access::of(cache, 0).store().pools()[0];
    // A page, as much as anybody may lock; by number, as sanitizers make nothing of the call by name.
    void* const last = pool.bytes(pool.own() - 1);
    REQUIRE(syscall(SYS_mlock, last, std::size_t{4096}) == 0);
    const kvtl::status s = cache.resize(may.least);
    CHECK(s.code() == kvtl::errc::unsupported);
    CHECK(std::string(s.what()).find("does not take memory back") != std::string::npos);
    CHECK(cache.memory().now == may.now);
    one.decode(60);
    one.check_tokens();
    REQUIRE(syscall(SYS_munlock, last, std::size_t{4096}) == 0);
    require_ok(cache.resize(may.least));
}

namespace {
/// Memory that says that it pins the arena, and lets go of it if it was made to.
template <bool LetsGo> struct pinning {
    static constexpr std::string_view name = "pinning";
    struct config {
        std::shared_ptr<std::vector<std::size_t>> arenas = std::make_shared<std::vector<std::size_t>>();
    };
    class device : public wrapped_memory<forwarding_queue> {
      public:
        device(wrapped_memory<forwarding_queue> inner, const config& c)
            : wrapped_memory<forwarding_queue>(std::move(inner)), arenas_(c.arenas) {}
        [[nodiscard]] kvtl::io_device_info device_info() const noexcept {
            auto f = wrapped_memory<forwarding_queue>::device_info();
            f.registered_arena = arenas_->empty() || arenas_->back() > 0;
            return f;
        }
        void use_arena(std::span<std::byte> arena) noexcept requires LetsGo {
            arenas_->push_back(arena.size());
        }

      private:
        std::shared_ptr<std::vector<std::size_t>> arenas_;
    };
    [[nodiscard]] static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        auto inner = wrapped_memory<forwarding_queue>::open(plan);
        if (!inner) return inner.error();
        return device(*std::move(inner), c);
    }
};
} // namespace

TEST_CASE("a device that cannot let go of memory keeps it, one that can is told so through others") {
    using stubborn = kvtl::kv_manager<on_device<kvtl::presets::dynakv, pinning<false>>>;
    auto kept = open_cache<stubborn>(roomy<stubborn>());
    const kvtl::memory_range may = kept.memory();
    const kvtl::status s = kept.resize(may.least);
    CHECK(s.code() == kvtl::errc::unsupported);
    CHECK(std::string(s.what()).find("keeps the memory pinned") != std::string::npos);
    CHECK(kept.memory().now == may.now);

    using switched = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::any_io>>;
    pinning<true>::config inner;
    typename switched::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = 96;
    c.io = kvtl::any_io::of<kvtl::faulty<kvtl::throttled<pinning<true>>>>({.inner = {.inner = inner}});
    c.memory_bytes = least_memory<switched>(c) + (std::size_t{1} << 20);
    auto cache = open_cache<switched>(c);
    const kvtl::memory_range range = cache.memory();
    require_ok(cache.resize(range.least));
    require_ok(cache.resize((range.least + range.now) / 2)); // more, but not all: nothing is pinned
    CHECK_FALSE(cache.device_info().registered_arena);
    require_ok(cache.resize(range.now));
    CHECK(cache.device_info().registered_arena);
    REQUIRE(inner.arenas->size() == 2);
    CHECK(inner.arenas->front() == 0);
    CHECK(inner.arenas->back() == kvtl::shard_access::of(cache, 0).store().pools()[0].memory().size());
}

#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
TEST_CASE("a device that has pinned the frames lets go of them, and pins them again") {
    using cache_type = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::any_io>>;
    const scratch_folder folder;
    typename cache_type::config c;
    c.shape = model;
    c.max_tokens = max_tokens;
    c.attend_tokens = max_tokens + 1;
    c.io = kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("resize.kv")});
    c.memory_bytes = least_memory<cache_type>(c) + (std::size_t{1} << 20);
    const drift data(model, max_tokens, 6);
    auto cache = open_cache<cache_type>(c);
    const bool pinned = cache.device_info().registered_arena;
    const std::size_t all = cache.stats().bytes_by_part.total(), least = cache.memory().least;
    reader<cache_type> one(cache, data, 5);
    one.prefill(400);
    one.decode(20);
    for (const std::size_t bytes : {least, all, least}) {
        require_ok(cache.resize(bytes));
        CHECK(cache.device_info().registered_arena == (pinned && bytes == all));
        one.decode(60);
    }
    CHECK(one.error() < 2e-3);
}
#endif

} // namespace manager_resize_test
