// Who may call when: all shards at once, one shard per thread, sequences over threads, and two threads in one
// shard, of which the second is told so.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/flexgen.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/lending.hpp"
#include "support/on_device.hpp"

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <thread>

namespace manager_threads_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{2, 8, 4, 32};
template <class Preset> using in_memory = on_device<Preset, kvtl::in_memory>;
using clusters = kvtl::kv_manager<in_memory<kvtl::presets::dynakv>>;
using groups = kvtl::kv_manager<in_memory<kvtl::presets::flexgen>>;
using rows = kvtl::snapkv_group;

template <class Cache> typename Cache::config sized(unsigned shards) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.prefill_tokens = 200;
    c.attend_tokens = 96;
    c.memory_bytes = std::size_t{16} << 20;
    c.shards = shards;
    return c;
}

/// Prompt and decode of one sequence, all layers; the outputs of every call one after the other.
template <class Call>
std::vector<float> play(const drift& data, std::size_t prompt, std::size_t steps, Call&& call) {
    std::vector<float> all;
    for (std::size_t t = 0; t < prompt + steps; t += t == 0 ? prompt : 1)
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<float> out((t == 0 ? prompt : 1) * data.query_floats(), NAN);
            call(l, t, data.input(l, t, t == 0 ? prompt : 1), out);
            all.insert(all.end(), out.begin(), out.end());
        }
    return all;
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
void failed(const kvtl::status& s, kvtl::errc code, const std::string& word) {
    CAPTURE(std::string(s.what()));
    CHECK(s.code() == code);
    CHECK(std::string(s.what()).find(word) != std::string::npos);
}

} // namespace

TEST_CASE("threads of the engine share a head's clustering, and no bit changes") {
    const drift data(small, 1300, 29);
    std::vector<std::vector<float>> runs;
    for (const unsigned count : {1U, 2U, 5U})
        for (const unsigned shards : {1U, 2U}) {
            lending pool(count);
            auto c = sized<clusters>(shards);
            c.max_tokens = 1300, c.prefill_tokens = 0;
            c.threads = pool.threads();
            auto cache = open_cache<clusters>(c);
            const auto seq = *cache.begin();
            runs.push_back(play(data, 1200, 10, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
                std::vector<std::thread> all; // those of several shards at once
                for (unsigned s = 0; s < cache.shards(); ++s)
                    all.emplace_back([&, s] {
                        const kvtl::status done = t == 0 ? cache.shard(s).prefill(seq, l, in, out)
                                                         : cache.shard(s).attend(seq, l, in, out);
                        if (!done) std::abort();
                    });
                for (auto& thread : all) thread.join();
            }));
            CHECK((pool.calls() > small.layers * small.kv_heads) == (count > 1));
        }
    for (const auto& run : runs) CHECK(same(run, runs[0]));
}

TEST_CASE_TEMPLATE("a call without a shard does all of them", Cache, clusters, groups, rows) {
    const drift data(small, 400, 21);
    std::vector<std::vector<float>> runs;
    for (const bool one_by_one : {true, false})
        for (const unsigned shards : {1U, 3U}) {
            auto cache = open_cache<Cache>(sized<Cache>(shards));
            const auto seq = *cache.begin();
            runs.push_back(play(data, 150, 20, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
                if (!one_by_one)
                    return require_ok(t == 0 ? cache.prefill(seq, l, in, out)
                                             : cache.attend(seq, l, in, out));
                for (unsigned s = 0; s < cache.shards(); ++s)
                    require_ok(t == 0 ? cache.shard(s).prefill(seq, l, in, out)
                                      : cache.shard(s).attend(seq, l, in, out));
            }));
            CHECK(cache.tokens(seq, 1) == 170);
        }
    for (const auto& run : runs) CHECK(same(run, runs[0]));
}

TEST_CASE("a call without a shard that fails in one of four shards happens in none") {
    using cache_t = kvtl::kv_manager<on_device<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;
    const drift data(small, 400, 22);
    auto c = sized<cache_t>(4);
    const auto clean = [&] {
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        return play(data, 150, 1, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
            require_ok(t == 0 ? cache.prefill(seq, l, in, out) : cache.attend(seq, l, in, out));
        });
    }();
    std::size_t failures = 0;
    for (std::uint64_t failing = 0; failing < 8; ++failing) {
        c.io.faults = std::make_shared<kvtl::io_faults>();
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        const auto run = play(data, 150, 1, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
            if (t != 0) return require_ok(cache.attend(seq, l, in, out));
            c.io.faults->writes = 0;
            c.io.faults->fail_write.first = failing;
            c.io.faults->fail_write.count = 1;
            kvtl::status s = cache.prefill(seq, l, in, out);
            c.io.faults->fail_write.first = kvtl::io_faults::never;
            if (!s) {
                ++failures;
                for (unsigned i = 0; i < cache.shards(); ++i)
                    CHECK(kvtl::shard_access::of(cache, i).tokens(seq.slot, static_cast<std::uint32_t>(l)) ==
                          0);
                s = cache.prefill(seq, l, in, out);
            }
            require_ok(s);
        });
        CHECK(same(run, clean));
    }
    CHECK(failures > 2);
}

TEST_CASE_TEMPLATE("sequences over threads: each conversation is what it is alone", Cache, clusters, groups,
                   rows) {
    constexpr unsigned threads = 3;
    auto c = sized<Cache>(threads);
    c.shard_by = kvtl::division::sequences;
    c.max_sequences = threads;
    std::vector<std::vector<float>> alone(threads), together(threads);
    const auto talk = [](Cache& cache, unsigned i) {
        const drift data(small, 400, 30 + i);
        const auto seq = *cache.begin();
        const auto mine = cache.shard(cache.shard_of(seq));
        auto all = play(data, 100 + 20 * i, 10, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
            require_ok(t == 0 ? mine.prefill(seq, l, in, out) : mine.attend(seq, l, in, out));
        });
        require_ok(cache.end(seq));
        return all;
    };
    for (unsigned i = 0; i < threads; ++i) {
        auto cache = open_cache<Cache>(c);
        alone[i] = talk(cache, i);
    }
    auto cache = open_cache<Cache>(c);
    CHECK(cache.shards() == threads);
    for (int round = 0; round < 3; ++round) { // slots, and so shards, come as the threads happen to begin
        std::barrier start(threads);
        std::vector<std::thread> pool;
        for (unsigned i = 0; i < threads; ++i)
            pool.emplace_back([&, i] {
                start.arrive_and_wait();
                together[i] = talk(cache, i);
            });
        for (std::thread& t : pool) t.join();
        for (unsigned i = 0; i < threads; ++i) CHECK(same(together[i], alone[i]));
    }
    CHECK(Cache::open([&] {
              auto more = c;
              more.shards = threads + 1;
              return more;
          }())
              .ok() == (Cache::types::unit_of == kvtl::granularity::layer)); // these divide sequences anyway
}

TEST_CASE("tables that grow on two threads at once: every bit is what it is on one") {
    constexpr std::size_t prompt = 200, steps = 300;
    auto c = sized<clusters>(2);
    c.max_tokens = 1600;
    c.max_sequences = 2, c.share = true;
    c.clusterer.threshold_scale = 1e-3F; // whatever comes splits what it joins
    c.memory_bytes = least_memory<clusters>(c) + 64 * 4096;
    std::vector<float> runs[2];
    for (const bool together : {false, true}) {
        auto cache = open_cache<clusters>(c);
        const kvtl::sequence_id both[] = {*cache.begin(), *cache.begin()};
        const auto rows_of = [&](unsigned shard) {
            return kvtl::shard_access::of(cache, shard).store().lanes().region_of(shard).at.rows;
        };
        std::vector<float> outputs[2];
        std::size_t grown[2] = {};
        std::barrier start(together ? 2 : 1);
        const auto talk = [&](unsigned shard) {
            const drift data(small, prompt + steps, 23);
            std::uint32_t rows = 0;
            start.arrive_and_wait();
            outputs[shard] =
                play(data, prompt, steps, [&](std::size_t l, std::size_t t, const auto& in, auto& out) {
                    for (const kvtl::sequence_id seq : both) {
                        std::fill(out.begin(), out.end(), 0.0F); // of the other shard's heads
                        require_ok(t == 0 ? cache.shard(shard).prefill(seq, l, in, out)
                                          : cache.shard(shard).attend(seq, l, in, out));
                    }
                    if (t > prompt && rows_of(shard) > rows) ++grown[shard];
                    rows = rows_of(shard);
                });
        };
        if (together) {
            std::thread other(talk, 1U);
            talk(0);
            other.join();
        } else {
            talk(0), talk(1);
        }
        for (const unsigned shard : {0U, 1U}) {
            CHECK(grown[shard] > 0);
            runs[together].insert(runs[together].end(), outputs[shard].begin(), outputs[shard].end());
        }
    }
    CHECK(same(runs[1], runs[0]));
}

TEST_CASE_TEMPLATE("two threads in one shard: the second is told, and nothing else happens", Cache, clusters,
                   rows) {
    const drift data(small, 400, 41);
    auto c = sized<Cache>(1);
    c.max_sequences = 2;
    auto cache = open_cache<Cache>(c);
    const kvtl::sequence_id seqs[2] = {*cache.begin(), *cache.begin()};
    for (const auto seq : seqs)
        for (std::size_t l = 0; l < small.layers; ++l)
            require_ok(cache.prefill(seq, l, data.input(l, 0, 150), {}));
    constexpr std::size_t steps = 120;
    std::atomic<std::size_t> refused = 0;
    std::barrier start(2);
    const auto decode = [&](kvtl::sequence_id seq) {
        std::vector<float> out(data.query_floats());
        start.arrive_and_wait();
        for (std::size_t t = 150; t < 150 + steps; ++t)
            for (std::size_t l = 0; l < small.layers; ++l)
                for (;;) {
                    const kvtl::status s = cache.attend(seq, l, data.input(l, t), out, 0);
                    if (s.ok()) break;
                    if (s.code() != kvtl::errc::busy) return require_ok(s);
                    ++refused;
                    std::this_thread::yield();
                }
    };
    std::thread other([&] { decode(seqs[1]); });
    decode(seqs[0]);
    other.join();
    for (const auto seq : seqs) CHECK(cache.tokens(seq, 1) == 150 + steps);
    CHECK(cache.stats().steps == 2 * steps * small.layers);

    // Deterministically: a shard that is held.
    kvtl::shard_access::of(cache, 0).busy.test_and_set();
    std::vector<float> out(data.query_floats());
    failed(cache.attend(seqs[0], 0, data.input(0, 270), out), kvtl::errc::busy, "attend: another thread");
    failed(cache.prefill(seqs[0], 0, data.input(0, 270, 2), {}), kvtl::errc::busy, "shard 0");
    failed(cache.append(seqs[0], 0, data.input(0, 270)), kvtl::errc::busy, "append");
    failed(cache.prefetch(seqs[0], 0, data.q(0, 270)), kvtl::errc::busy, "prefetch");
    failed(cache.rewind(seqs[0], 1), kvtl::errc::busy, "rewind");
    failed(cache.retry_writes(seqs[0]), kvtl::errc::busy, "retry_writes");
    failed(cache.end(seqs[0]), kvtl::errc::busy, "end");
    kvtl::shard_access::of(cache, 0).busy.clear();
    CHECK(cache.tokens(seqs[0], 0) == 150 + steps);
    require_ok(cache.attend(seqs[0], 0, data.input(0, 270), out));
}

TEST_CASE("a shard that is not there") {
    const drift data(small, 20, 42);
    auto cache = open_cache<clusters>(sized<clusters>(2));
    const auto seq = *cache.begin();
    failed(cache.shard(2).append(seq, 0, data.input(0, 0)), kvtl::errc::out_of_range,
           "shard is 2; valid: 0 to 1");
}

TEST_CASE("presets of whole layers use all memory, whatever the number of shards") {
    const auto frames = [](unsigned shards, std::size_t sequences, kvtl::division how) {
        auto c = sized<groups>(shards);
        c.memory_bytes = std::size_t{4} << 20;
        c.max_tokens = 4000;
        c.max_sequences = sequences;
        c.shard_by = how;
        auto cache = open_cache<groups>(c);
        CHECK(cache.shards() == std::min<std::size_t>(shards, sequences));
        return kvtl::shard_access::of(cache, 0).store().pool_of(0).size();
    };
    const auto heads = kvtl::division::heads, sequences = kvtl::division::sequences;
    CHECK(frames(2, 1, heads) == frames(1, 1, heads));
    CHECK(frames(4, 1, sequences) == frames(1, 1, sequences));
    const std::uint32_t one = frames(1, 2, heads), two = frames(2, 2, heads);
    CHECK(two >= one - one / 10); // tables and scratch of a second shard
}

TEST_CASE_TEMPLATE("a layer that was left out is noticed at the next token", Cache, clusters, rows) {
    const drift data(small, 400, 43);
    for (const std::size_t left_out : {0U, 1U}) {
        auto cache = open_cache<Cache>(sized<Cache>(1));
        const auto seq = *cache.begin();
        for (std::size_t l = 0; l < small.layers; ++l)
            require_ok(cache.prefill(seq, l, data.input(l, 0, 150), {}));
        std::vector<float> out(data.query_floats());
        require_ok(cache.attend(seq, 1 - left_out, data.input(1 - left_out, 150), out));
        const auto next = data.input(1 - left_out, 151);
        const std::string text = "layer " + std::to_string(left_out) + " only 150: it was left out";
        failed(cache.attend(seq, 1 - left_out, next, out), kvtl::errc::invalid_argument, text);
        failed(cache.append(seq, 1 - left_out, next), kvtl::errc::invalid_argument, text);
        require_ok(cache.attend(seq, left_out, data.input(left_out, 150), out));
        require_ok(cache.attend(seq, 1 - left_out, next, out));
    }
}

} // namespace manager_threads_test
