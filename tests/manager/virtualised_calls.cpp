// Layers that have the memory of their cache in turn: every call, every device, and what happens when reads and
// writes between memory and storage fail.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/backends.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "contracts/io.hpp"
#include "support/cache_fixture.hpp"
#include "support/planner_for.hpp"

#include <set>

namespace manager_virtualised_calls_test {

using namespace kvtl_test;

namespace {

template <class Schedule> struct testing : kvtl::presets::dynakv_virtualised {
    using schedule = Schedule;
    using compressor = kvtl::raw<float>;
    using io = kvtl::faulty<kvtl::any_io>;
};
/// All that is resident comes back, however long nobody asked for it.
struct whole_cache : kvtl::layer_virtualised {
    struct config {
        std::uint32_t hot_steps = kvtl::none;
        template <class Visit> void fields(Visit&& visit) { visit("hot_steps", hot_steps); }
    };
};
using turns = kvtl::kv_manager<testing<kvtl::layer_virtualised>>;
using whole = kvtl::kv_manager<testing<whole_cache>>;
using resident = kvtl::kv_manager<testing<kvtl::on_demand>>;

/// What retention kept of all layers moves to units when the last one has come.
struct thinned : kvtl::presets::snapkv_then_dynakv {
    using schedule = kvtl::layer_virtualised;
    using compressor = kvtl::raw<float>;
    using io = kvtl::faulty<kvtl::any_io>;
};
using moved = kvtl::kv_manager<thinned>;

constexpr kvtl::shape small{4, 4, 2, 64};
constexpr std::size_t max_tokens = 420;

template <class Cache> typename Cache::config config_for(std::size_t attend_tokens, bool smallest) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = attend_tokens;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    c.io.inner = kvtl::any_backend({.use = kvtl::backend::memory});
    c.memory_bytes = smallest ? *Cache::least_memory(c) : std::size_t{16} << 20;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    return c;
}

/// A prompt, decode, a turn, decode.
template <class Cache> std::vector<float> undisturbed(Cache& cache, const drift& data) {
    reader<Cache> one(cache, data, 0);
    one.prefill(150, 90);
    one.decode(100);
    one.prefill(40);
    one.decode(30);
    one.end();
    return one.outputs();
}
} // namespace

TEST_CASE("with the budget for everything it is dense attention") {
    const auto run = [](scenario s) { run_scenario<turns>(s, config_for<turns>(0, false)); };
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        run({.shape = small, .prompt = 60, .decode = 60, .smallest = smallest});
        run({.shape = small,
             .prompt = 300,
             .chunk = 97,
             .decode = 40,
             .turn = 50,
             .turn_decode = 20,
             .smallest = smallest});
        run({.shape = {3, 6, 3, 64},
             .prompt = 300,
             .decode = 30,
             .turn = 20,
             .shards = 2,
             .smallest = smallest});
        run({.shape = {7, 2, 1, 64}, .decode = 200, .smallest = smallest}); // clustered on the way
    }
    run({.shape = {2, 4, 2, 64},
         .prompt = 200,
         .decode = 40,
         .turn = 30,
         .turn_decode = 10,
         .smallest = true});
    run({.shape = {1, 4, 2, 64},
         .prompt = 200,
         .decode = 40,
         .turn = 30,
         .turn_decode = 10,
         .smallest = true});
    run({.shape = small, .prompt = 250, .chunk = 100, .decode = 20, .smallest = true, .adapt_prompt = true});
}

TEST_CASE("what is left of a prompt moves into the memory that layers have in turn") {
    auto c = config_for<moved>(max_tokens, false);
    c.keep_tokens = max_tokens; // all of it, so that dense attention is the reference
    c.prefill_tokens = 200;
    c.memory_bytes = *moved::least_memory(c);
    auto cache = open_cache<moved>(c);
    const drift data(small, max_tokens, 47);
    for (int round = 0; round < 2; ++round) {
        reader<moved> one(cache, data, 3);
        one.prefill(200);
        one.decode(80);
        one.prefill(30);
        one.decode(20);
        one.check_tokens();
        CHECK(one.error() < exact);
        one.end();
    }
    CHECK(cache.stats().hot_set_bytes > 0);
}

TEST_CASE("sequences side by side, and one after the other") {
    for (const bool share : {false, true}) {
        CAPTURE(share);
        auto c = config_for<turns>(max_tokens, true);
        c.max_sequences = 2;
        c.share = share;
        c.memory_bytes = *turns::least_memory(c);
        auto cache = open_cache<turns>(c);
        const drift first(small, max_tokens, 1), second(small, max_tokens, 2);
        for (int round = 0; round < 2; ++round) { // the second time everything is used anew
            reader<turns> a(cache, first, 5), b(cache, second, 5);
            a.prefill(200, 90);
            for (int i = 0; i < 20; ++i) {
                a.decode(1);
                if (i % 4 == 0) b.prefill(30, 30); // a prompt, then turns between the other's steps
                b.decode(1);
            }
            a.prefill(40);
            a.decode(5);
            a.end();
            b.decode(3);
            b.check_tokens();
            CHECK(a.error() < exact);
            CHECK(b.error() < exact);
            b.end();
        }
        CHECK(kvtl::shard_access::of(cache, 0).store().layout().used() == 0);
        for (const auto& pool : kvtl::shard_access::of(cache, 0).store().pools()) CHECK(pool.in_use() == 0);
        CHECK(cache.stats().resident_bytes_peak <= c.memory_bytes);
    }
}

TEST_CASE("the same bits on every device, in whatever order it completes") {
    const drift data(small, max_tokens, 41);
    const scratch_folder folder;
    for (const bool smallest : {false, true}) {
        auto c = config_for<turns>(96, smallest);
        auto cache = open_cache<turns>(c);
        const auto expected = undisturbed(cache, data);
        const kvtl::statistics s = cache.stats();
        CHECK(s.hot_set_bytes > 0);
        CHECK(s.splits > 20);
        const auto same = [&](const turns::config& other) {
            auto there = open_cache<turns>(other);
            CHECK(same_bits(undisturbed(there, data), expected));
            CHECK(there.stats().hot_set_bytes == s.hot_set_bytes);
            CHECK(there.stats().resident_chosen_bytes == s.resident_chosen_bytes);
        };
        auto d = c;
        d.io.faults->hold_percent = 70;
        same(d);
        d.io.faults->hold_percent = 0;
        d.io.inner = kvtl::any_backend({.use = kvtl::backend::posix, .path = folder.file("posix.kv")});
        same(d);
#if defined(KVTL_HAS_URING) && KVTL_HAS_URING
        d.io.inner = kvtl::any_backend({.use = kvtl::backend::uring, .path = folder.file("uring.kv")});
        same(d);
#endif
    }
}

TEST_CASE("what cannot be read back is read when it is asked for, and nothing is lost") {
    const drift data(small, max_tokens, 42);
    auto c = config_for<turns>(max_tokens,
                               false); // everything is resident, so all reads of decode are of hot sets
    c.read_through_pages = 0;
    auto& f = *c.io.faults;
    auto undisturbed_cache = open_cache<turns>(c);
    reader<turns> should(undisturbed_cache, data, 0);
    should.prefill(150);
    should.decode(90);
    for (const bool corrupt : {false, true}) {
        CAPTURE(corrupt);
        auto cache = open_cache<turns>(c);
        reader<turns> one(cache, data, 5);
        one.prefill(150);
        one.decode(2); // now every unit is resident
        const kvtl::statistics before = cache.stats();
        std::size_t hurt = 0;
        for (std::size_t i = 0; i < 88; ++i)
            one.step([&](std::size_t layer) {
                f.fail_read.first = kvtl::io_faults::never;
                f.corrupt_read = kvtl::io_faults::never;
                if ((i + layer) % 7 != 3) return;
                // before this layer is attended its hot set is there; the next one's is read meanwhile
                require_ok(cache.before_query(one.id(), layer));
                ++hurt;
                if (corrupt) { // of what is known of units, then of units
                    f.corrupt_read = f.reads.load() + hurt % 4;
                } else {
                    f.fail_read.count = 1 + i % 3 * 100;
                    f.fail_read.first = f.reads.load();
                }
            });
        f.fail_read.first = kvtl::io_faults::never;
        f.corrupt_read = kvtl::io_faults::never;
        one.check_tokens();
        CHECK(one.error() < exact);
        CHECK(same_bits(one.outputs(), should.outputs()));
        const kvtl::statistics after = cache.stats();
        CHECK(hurt > 30);
        CHECK(after.decode_reads - before.decode_reads >= hurt / 2); // of units that had to be read on demand
        CHECK(after.resident_chosen_bytes - before.resident_chosen_bytes <
              after.chosen_bytes - before.chosen_bytes);
        one.end();
    }
}

TEST_CASE("a write that fails keeps its memory until it is tried again") {
    const drift data(small, max_tokens, 43);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        auto c = config_for<turns>(max_tokens, smallest);
        auto cache = open_cache<turns>(c);
        reader<turns> one(cache, data, 3);
        one.prefill(150);
        auto& f = *c.io.faults;
        auto& store = kvtl::shard_access::of(cache, 0).store();
        const auto failed = [&] {
            return !kvtl::shard_access::of(cache, 0).retrieved().check_writes(0).ok();
        };
        std::set<std::size_t> layers;
        std::size_t refused = 0, of_representatives = 0;
        for (std::uint64_t i = 0; i < 150; ++i) {
            one.step([&](std::size_t layer) {
                if (i % 3 == 0 && layer == i / 3 % small.layers) {
                    f.fail_write.count = 1 + i % 5 * 3;
                    f.fail_write.first =
                        f.writes.load() + (i % 2 == 0 ? 0 : 6); // then of pages of entries, too
                }
                for (int twice = 0; twice < 2;
                     ++twice) // writes of the layer before begin; they land, or fail
                    if (i % 2 == 0)
                        require_ok(cache.before_query(one.id(), layer));
                    else
                        static_cast<void>(cache.prefetch(one.id(), layer, data.q(layer, 0)));
                if (!failed()) return;
                ++refused;
                layers.insert(layer);
                std::vector<float> out(data.query_floats());
                const auto in = data.input(layer, one.tokens());
                const kvtl::status s = cache.attend(one.id(), layer, in, out);
                CHECK(s.code() == kvtl::errc::writes_pending);
                CHECK(std::string(s.what()).find("retry_writes") != std::string::npos);
                of_representatives +=
                    std::string(s.what()).find("what is known") != std::string::npos ? 1U : 0U;
                CHECK(cache.append(one.id(), layer, in).code() == kvtl::errc::writes_pending);
                std::vector<float> turn(5 * data.query_floats());
                CHECK(cache.prefill(one.id(), layer, data.input(layer, one.tokens(), 5), turn).code() ==
                      kvtl::errc::writes_pending);
                CHECK(cache.tokens(one.id(), layer) == one.tokens());
                std::size_t rows = 0; // reading is still possible, in the other arena at least
                const kvtl::status read =
                    cache.select(one.id(), layer, data.q(layer, one.tokens()),
                                 [&](std::size_t, auto keys, auto) { rows += keys.count; });
                if (read.ok()) CHECK(rows == cache.tokens(one.id(), layer) * small.kv_heads);
                f.fail_write.first = kvtl::io_faults::never;
                require_ok(cache.retry_writes(one.id()));
                CHECK_FALSE(failed());
            });
        }
        one.check_tokens();
        CHECK(refused > 15);
        CHECK(of_representatives > 5);
        CHECK(of_representatives < refused);
        CHECK(layers.size() > 1);
        CHECK(one.error() < exact);
        // One that is ended with writes that failed leaves nothing behind.
        f.fail_write.first = f.writes.load();
        f.fail_write.count = 1U << 30;
        std::vector<float> out(data.query_floats());
        for (std::size_t t = one.tokens(), l = 0; t < max_tokens;
             l = (l + 1) % small.layers, t += l == 0 ? 1 : 0)
            if (!cache.attend(one.id(), l, data.input(l, t), out).ok()) break;
        CHECK(failed());
        one.end();
        f.fail_write.first = kvtl::io_faults::never;
        CHECK(store.layout().used() == 0);
        for (const auto& pool : store.pools()) CHECK(pool.in_use() == 0);
        reader<turns> two(cache, data, 3);
        two.prefill(100);
        two.decode(20);
        CHECK(two.error() < exact);
    }
}

TEST_CASE("guesses, selections, drafts, rewinding: as if layers had memory of their own") {
    const drift data(small, max_tokens, 44);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        auto c = config_for<turns>(max_tokens, smallest);
        c.io.faults->hold_percent = 60; // writes are on their way when the next draft comes
        auto cache = open_cache<turns>(c);
        reader<turns> one(cache, data, 3);
        one.prefill(150);
        for (std::size_t i = 0; i < 60; ++i) {
            one.step([&](std::size_t layer) { // wrong ones too, and for all layers
                for (std::size_t l = layer; l < small.layers; ++l)
                    require_ok(cache.prefetch(one.id(), l, data.q(l, (one.tokens() * 7 + l) % 150)));
                if (i % 5 == 0) require_ok(cache.before_query(one.id(), (layer + 2) % small.layers));
            });
            if (i % 20 == 9) one.draft(3);
            if (i % 20 == 15) one.rewind(2);
        }
        one.check_tokens();
        CHECK(one.error() < exact);
        CHECK(cache.stats().wasted_bytes < cache.stats().read_bytes);
    }
    // With room for everything a selection shows what it shows of a cache whose layers keep their memory.
    auto c = config_for<whole>(96, false);
    auto d = config_for<resident>(96, false);
    auto here = open_cache<whole>(c);
    auto there = open_cache<resident>(d);
    reader<whole> one(here, data, 0);
    reader<resident> two(there, data, 0);
    one.prefill(150);
    two.prefill(150);
    for (std::size_t t = 150; t < 230; ++t)
        for (std::size_t l = 0; l < small.layers; ++l) {
            auto in = data.input(l, t);
            in.q = {};
            require_ok(here.append(one.id(), l, in));
            require_ok(there.append(two.id(), l, in));
            std::vector<float> rows, expected;
            const auto into = [](std::vector<float>& all) {
                return [&all](std::size_t, kvtl::rows_view<float> k, kvtl::rows_view<float> v) {
                    for (std::size_t r = 0; r < k.count; ++r) {
                        all.insert(all.end(), k.row(r), k.row(r) + k.dim);
                        all.insert(all.end(), v.row(r), v.row(r) + v.dim);
                    }
                };
            };
            require_ok(here.select(one.id(), l, data.q(l, t), into(rows)));
            require_ok(there.select(two.id(), l, data.q(l, t), into(expected)));
            CHECK(rows.size() > 40 * 2 * 64);
            CHECK(same_bits(rows, expected));
        }
    CHECK(here.stats().hot_set_bytes > 0);
}

TEST_CASE("what no step of late has asked for is not read back") {
    const drift data(small, max_tokens, 46);
    const auto run = [&]<class Cache>(std::size_t attend) {
        auto cache = open_cache<Cache>(config_for<Cache>(attend, false));
        reader<Cache> one(cache, data, 5);
        one.prefill(200);
        one.decode(150);
        CHECK((attend < max_tokens || one.error() < exact));
        return cache.stats();
    };
    const auto all = run.operator()<whole>(64), hot = run.operator()<turns>(64);
    CHECK(hot.hot_set_bytes < all.hot_set_bytes * 3 / 4);
    CHECK(hot.hit_rate() < all.hit_rate());
    CHECK(hot.hit_rate() > all.hit_rate() / 2); // most of what is asked for was asked for a moment ago
    // Where every step asks for everything, everything comes back.
    CHECK(run.operator()<whole>(max_tokens).hot_set_bytes == run.operator()<turns>(max_tokens).hot_set_bytes);
}

TEST_CASE("the memory is that of two layers, and a bound below says what is missing") {
    constexpr kvtl::shape deep{16, 8, 4, 64};
    auto c = config_for<turns>(96, false);
    auto d = config_for<resident>(96, false);
    c.shape = d.shape = deep;
    c.max_tokens = d.max_tokens = 2000;
    c.memory_bytes = *turns::least_memory(c) + (std::size_t{1} << 20);
    const auto plan_of = []<class Cache>(const typename Cache::config& config) {
        planner_for planner(config);
        REQUIRE(planner.plan().ok());
        return planner.sizes();
    };
    const auto virtualised = plan_of.operator()<turns>(c);
    d.memory_bytes = std::size_t{1} << 32;
    std::size_t low = *resident::least_memory(d),
                high = d.memory_bytes; // as many frames for all layers together
    while (low < high) {
        d.memory_bytes = low + (high - low) / 2;
        if (plan_of.operator()<resident>(d).plan.frames < virtualised.plan.frames * deep.layers)
            low = d.memory_bytes + 1;
        else
            high = d.memory_bytes;
    }
    d.memory_bytes = low;
    const auto plain = plan_of.operator()<resident>(d);
    const auto lent = [](const auto& a) { return a.parts.frames + a.parts.tails; };
    CHECK(virtualised.parts.frames == 2 * std::size_t{virtualised.plan.frames} * 4096);
    CHECK(virtualised.parts.total() <= c.memory_bytes);
    CHECK(lent(virtualised) * 3 < lent(plain));
    CHECK(c.memory_bytes * 2 < d.memory_bytes);

    c.memory_bytes = *turns::least_memory(c) - 1;
    const auto refused = turns::open(c);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == kvtl::errc::bound_too_small);
    for (const char* part : {"frames", "of two layers", "tails", "open_pages", "max_tokens"})
        CHECK_MESSAGE(refused.error().message.find(part) != std::string::npos, refused.error().message);
}

TEST_CASE("what before_query reads is timed as what a step reads") {
    const drift data(small, max_tokens, 46);
    auto c = config_for<turns>(96, true);
    c.time_phases = true;
    auto cache = open_cache<turns>(c);
    reader<turns> one(cache, data, 0);
    one.prefill(300);
    one.decode(3);
    const auto before = cache.stats();
    require_ok(cache.before_query(one.id(), 2));
    const auto after = cache.stats();
    CHECK(after.representative_bytes_read > before.representative_bytes_read);
    CHECK(after.phase_ns.fetch_wait > before.phase_ns.fetch_wait);
    CHECK(after.phase_ns.attend == before.phase_ns.attend);
}

TEST_CASE("before_query: legal everywhere, and says what is wrong with it") {
    const drift data(small, max_tokens, 45);
    auto here = open_cache<turns>(config_for<turns>(96, false));
    auto there = open_cache<resident>(config_for<resident>(96, false));
    const auto seq = *here.begin();
    const auto other = *there.begin();
    require_ok(here.before_query(seq, 0)); // nothing there yet
    require_ok(there.before_query(other, 3));
    require_ok(here.shard(0).before_query(seq, 1));
    const auto far = here.before_query(seq, 4);
    CHECK(far.code() == kvtl::errc::out_of_range);
    CHECK(std::string(far.what()).find("before_query: layer is 4; valid: 0 to 3") != std::string::npos);
    CHECK(here.before_query(seq, 0, 1).code() == kvtl::errc::out_of_range);
    require_ok(here.end(seq));
    CHECK(here.before_query(seq, 0).code() == kvtl::errc::not_open);
    CHECK(there.stats().unannounced_layers == 0);
    CHECK(there.stats().hot_set_reads == 0);
}

} // namespace manager_virtualised_calls_test
