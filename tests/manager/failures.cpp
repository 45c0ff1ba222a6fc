// A call that fails changes nothing: tokens, units and statistics are as before, the error names what went
// wrong, and the same call made again gives the bits of a run in which nothing ever failed.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <cstring>
#include <limits>

namespace manager_failures_test {

using namespace kvtl_test;

namespace {

template <class Preset> using testing = f32_on<Preset, kvtl::faulty<kvtl::in_memory>>;
using paged = kvtl::kv_manager<testing<kvtl::presets::dynakv>>;
/// Records are other than the rows that chunks wait as.
struct codes_in_pages : testing<kvtl::presets::dynakv> {
    using compressor = kvtl::int8_row<float>;
};
using paged_codes = kvtl::kv_manager<codes_in_pages>;

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t max_tokens = 420;

template <class Cache> typename Cache::config tight(std::size_t attend_tokens = 96) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = attend_tokens;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    // Entries join units that are resident, and residency is not part of "as before": outputs are the same bits after
    // a failure only where what the failed call has read decides nothing. So it does in little memory, where all is
    // cold.
    c.memory_bytes = least_memory<Cache>(c);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    return c;
}

/// What "as before" means: everything but who is resident and what was asked of the device.
struct snapshot {
    std::vector<std::size_t> tokens;
    std::vector<std::uint32_t> words;
    std::vector<float> numbers;
    std::vector<std::uint64_t> counters;
    friend bool operator==(const snapshot&, const snapshot&) = default;
};
template <class Cache> snapshot take(Cache& cache, kvtl::sequence_id seq) {
    snapshot s;
    auto& store = kvtl::shard_access::of(cache, 0).store();
    for (std::uint32_t layer = 0; layer < small.layers; ++layer) {
        s.tokens.push_back(cache.tokens(seq, layer));
        for (std::uint32_t h = 0; h < small.kv_heads; ++h) {
            const auto l = store.at((seq.slot * small.layers + layer) * small.kv_heads + h);
            const auto& state = l.state();
            s.words.insert(s.words.end(), {state.tokens, state.sinks, state.window_begin, state.units,
                                           state.buffered, state.staged});
            for (std::uint32_t i = 0; i < state.buffered; ++i) s.words.push_back(l.buffer_unit(i));
            s.numbers.push_back(l.clusterer().threshold);
            for (std::uint32_t u = 0; u < state.units; ++u) {
                const auto& unit = l.unit(u);
                s.words.insert(s.words.end(), {unit.entries, unit.buffered, unit.flagged ? 1U : 0U,
                                               unit.where.first, unit.where.extra});
                s.numbers.push_back(unit.m2);
                s.numbers.resize(s.numbers.size() + small.head_dim);
                l.means().get(u, &s.numbers[s.numbers.size() - small.head_dim]);
            }
        }
    }
    const kvtl::statistics t = cache.stats();
    s.counters = {
        t.steps,        t.useful_bytes,   t.wasted_bytes,           t.chosen_bytes, t.resident_chosen_bytes,
        t.chosen_units, t.read_entries,   t.decode_reads,           t.splits,       t.delayed_splits,
        t.forced_loads, t.refused_splits, t.bytes_moved_by_updates, t.choices,      t.selectable_entries,
        t.empty_choices};
    return s;
}

/// The undisturbed run: a prompt in two chunks, decode, a turn, decode.
template <class Cache> std::vector<float> undisturbed(const typename Cache::config& c, const drift& data) {
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 0);
    one.prefill(150, 90);
    one.decode(100);
    one.prefill(40);
    one.decode(30);
    return one.outputs();
}

/// The same run; before each call `arm` lets the device fail, and when the call has failed `disarm` makes it
/// well.
template <class Cache, class Arm, class Disarm>
std::size_t disturbed(const typename Cache::config& c, const drift& data, kvtl::errc expected,
                      const std::vector<float>& should, Arm&& arm, Disarm&& disarm) {
    auto cache = open_cache<Cache>(c);
    const auto seq = *cache.begin();
    std::vector<float> outputs;
    std::size_t failures = 0, token = 0;
    const auto call = [&](std::size_t layer, std::size_t n, bool prefill, bool last) {
        std::vector<float> out(n * data.query_floats(), NAN);
        auto in = data.input(layer, token, n);
        in.last_chunk = last;
        const auto once = [&] {
            return prefill ? cache.prefill(seq, layer, in, out) : cache.attend(seq, layer, in, out);
        };
        const snapshot before = take(cache, seq);
        arm(cache);
        kvtl::status s = once();
        disarm(cache);
        if (!s.ok()) {
            ++failures;
            CHECK_MESSAGE(s.code() == expected, std::string(s.what()));
            const snapshot after = take(cache, seq);
            CAPTURE(token);
            CAPTURE(prefill);
            CHECK(after.tokens == before.tokens);
            CHECK(after.words == before.words);
            CHECK(after.numbers == before.numbers);
            CHECK(after.counters == before.counters);
            s = once();
        }
        require_ok(s);
        outputs.insert(outputs.end(), out.begin(), out.end());
    };
    for (const std::size_t chunk : {90U, 60U}) {
        for (std::size_t l = 0; l < small.layers; ++l) call(l, chunk, true, chunk == 60);
        token += chunk;
    }
    const auto decode = [&](int n) {
        for (int i = 0; i < n; ++i, ++token)
            for (std::size_t l = 0; l < small.layers; ++l) call(l, 1, false, true);
    };
    decode(100);
    for (std::size_t l = 0; l < small.layers; ++l) call(l, 40, true, true);
    token += 40;
    decode(30);
    CHECK(same_bits(outputs, should));
    return failures;
}

template <class Cache> void reads_that_fail() {
    const drift data(small, max_tokens, 31);
    auto c = tight<Cache>();
    const auto should = undisturbed<Cache>(c, data);
    auto& f = *c.io.faults;
    SUBCASE("the first read of a call fails") {
        CHECK(disturbed<Cache>(
                  c, data, kvtl::errc::io_error, should, [&](auto&) { f.fail_read.first = f.reads.load(); },
                  [&](auto&) { f.fail_read.first = kvtl::io_faults::never; }) > 50);
    }
    SUBCASE("a later read of a call fails, and completions come late") {
        f.hold_percent = 50;
        CHECK(disturbed<Cache>(
                  c, data, kvtl::errc::io_error, should,
                  [&](auto&) { f.fail_read.first = f.reads.load() + 2; },
                  [&](auto&) { f.fail_read.first = kvtl::io_faults::never; }) > 20);
    }
    SUBCASE("a bit has flipped") {
        CHECK(disturbed<Cache>(
                  c, data, kvtl::errc::corrupt, should, [&](auto&) { f.corrupt_read = f.reads.load(); },
                  [&](auto&) { f.corrupt_read = kvtl::io_faults::never; }) > 20);
    }
}

} // namespace

TEST_CASE("failed reads change nothing") {
    reads_that_fail<paged>();
}

TEST_CASE("reads that fail while lanes are clustered for the first time can be tried again") {
    // Which lanes have been clustered before the failure is kept; tokens are not taken, and the bits stay the
    // same.
    const drift data(small, max_tokens, 37);
    auto c = tight<paged>();
    auto plain = open_cache<paged>(c);
    reader<paged> undisturbed(plain, data, 0);
    undisturbed.decode(120);
    auto cache = open_cache<paged>(c);
    const auto seq = *cache.begin();
    auto& f = *c.io.faults;
    std::size_t failures = 0;
    std::vector<float> outputs;
    for (std::size_t t = 0; t < 120; ++t)
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<float> out(data.query_floats(), NAN);
            for (std::uint64_t nth = 0;;
                 ++nth) { // the first read of the call fails, then the second, until there is none
                f.fail_read.first = f.reads.load() + nth;
                const kvtl::status s = cache.attend(seq, l, data.input(l, t), out);
                if (s.ok()) break;
                ++failures;
                REQUIRE(s.code() == kvtl::errc::io_error);
                CHECK(cache.tokens(seq, l) == t);
            }
            outputs.insert(outputs.end(), out.begin(), out.end());
        }
    CHECK(failures > 20);
    CHECK(same_bits(outputs, undisturbed.outputs()));
}

TEST_CASE("a full disk refuses entries before it takes them") {
    const drift data(small, max_tokens, 32);
    auto c = tight<paged>();
    const auto should = undisturbed<paged>(c, data);
    c.io.faults->full_beyond = 4096;
    auto cache = open_cache<paged>(c);
    const auto seq = *cache.begin();
    std::vector<float> out(150 * data.query_floats());
    const snapshot empty = take(cache, seq);
    for (const bool last : {false, true}) {
        auto in = data.input(0, 0, 150);
        in.last_chunk = last;
        const kvtl::status s = cache.prefill(seq, 0, in, out);
        CHECK(s.code() == kvtl::errc::disk_full);
        CHECK(take(cache, seq) == empty);
    }
    CHECK(cache.attend(seq, 0, data.input(0, 0), std::span(out).first(data.query_floats())).code() ==
          kvtl::errc::disk_full);
    CHECK(take(cache, seq) == empty);
    c.io.faults->full_beyond = kvtl::io_faults::never; // somebody made room
    require_ok(cache.end(seq));
    reader<paged> one(cache, data, 0);
    one.prefill(150, 90);
    one.decode(100);
    one.prefill(40);
    one.decode(30);
    CHECK(same_bits(one.outputs(), should));
}

TEST_CASE("a prompt whose pages cannot be written is refused and may come again") {
    const drift data(small, max_tokens, 33);
    auto c = tight<paged>();
    const auto should = undisturbed<paged>(c, data);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    auto& f = *c.io.faults;
    std::vector<float> out(90 * data.query_floats());
    for (const std::uint64_t nth : {0U, 1U}) {
        const snapshot before = take(cache, one.id());
        for (const bool last : {false, true}) {
            f.fail_write.first = f.writes.load() + nth;
            auto in = data.input(0, 0, 90);
            in.last_chunk = last;
            const kvtl::status s = cache.prefill(one.id(), 0, in, out);
            CHECK(s.code() == kvtl::errc::io_error);
            CHECK(take(cache, one.id()) == before);
        }
    }
    f.fail_write.first = kvtl::io_faults::never;
    one.prefill(150, 90);
    one.decode(100);
    one.prefill(40);
    one.decode(30);
    CHECK(same_bits(one.outputs(), should));
}

TEST_CASE_TEMPLATE("whichever read or write of a prompt in chunks fails, its chunk may come again", Cache,
                   paged, paged_codes) {
    const drift data(small, max_tokens, 38);
    auto c = tight<Cache>();
    c.clusterer.segment = 64; // the last chunk reads the ones before it back, a segment at a time
    c.memory_bytes = least_memory<Cache>(c);
    auto& f = *c.io.faults;
    const auto run = [&](bool failing) {
        auto cache = open_cache<Cache>(c);
        const auto seq = *cache.begin();
        std::vector<float> outputs;
        std::size_t token = 0, failures = 0;
        for (const std::size_t chunk : {90U, 61U, 103U}) { // no chunk begins with a page
            for (std::size_t l = 0; l < small.layers; ++l) {
                std::vector<float> out(chunk * data.query_floats(), NAN);
                auto in = data.input(l, token, chunk);
                in.last_chunk = chunk == 103;
                const auto until_done = [&](std::atomic<std::uint64_t>& nth,
                                            const std::atomic<std::uint64_t>& calls) {
                    for (std::uint64_t n = 0;; ++n) {
                        nth = calls.load() + n;
                        const kvtl::status s = cache.prefill(seq, l, in, out);
                        nth = kvtl::io_faults::never;
                        if (s.ok()) return true;
                        ++failures;
                        CHECK_MESSAGE(s.code() == kvtl::errc::io_error, std::string(s.what()));
                        CHECK(cache.tokens(seq, l) == token);
                        if (n == 40) return false;
                    }
                };
                if (!failing)
                    require_ok(cache.prefill(seq, l, in, out));
                else if (l % 2 == 0)
                    REQUIRE(until_done(f.fail_read.first, f.reads));
                else
                    REQUIRE(until_done(f.fail_write.first, f.writes));
                outputs.insert(outputs.end(), out.begin(), out.end());
            }
            token += chunk;
        }
        for (int i = 0; i < 60; ++i, ++token)
            for (std::size_t l = 0; l < small.layers; ++l) {
                std::vector<float> out(data.query_floats());
                require_ok(cache.attend(seq, l, data.input(l, token), out));
                outputs.insert(outputs.end(), out.begin(), out.end());
            }
        if (failing) CHECK(failures > 5);
        return outputs;
    };
    const auto should = run(false);
    CHECK(same_bits(run(true), should));
    f.fail_late = true; // a write that is reported as failed may have reached the device
    CHECK(same_bits(run(true), should));
}

TEST_CASE("a background write that fails loses nothing: appends wait, reads go on, a retry mends it") {
    const drift data(small, max_tokens, 34);
    auto c = tight<paged>(max_tokens);
    SUBCASE("units of a page or two") {}
    SUBCASE("units of several pages, of which a split leaves those in front as they are, written or not") {
        c.clusterer.tokens_per_cluster = 16; // with 32, none of the splits leaves a page
        c.memory_bytes = least_memory<paged>(c);
    }
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 3);
    one.prefill(150);
    auto& f = *c.io.faults;
    std::size_t refused = 0;
    for (int i = 0; i < 150; ++i) {
        if (i % 3 == 0) {
            f.fail_write.count = 1 + static_cast<std::uint64_t>(i % 5) * 3;
            f.fail_write.first = f.writes.load();
        }
        one.step([&](std::size_t layer) {
            std::vector<float> out(data.query_floats());
            const snapshot before = take(cache, one.id());
            auto& store = kvtl::shard_access::of(cache, 0).store();
            if (!store.has_failed_writes(store.pool_of(0))) return;
            ++refused;
            const kvtl::status s = cache.attend(one.id(), layer, data.input(layer, one.tokens()), out);
            CHECK(s.code() == kvtl::errc::writes_pending);
            CHECK(std::string(s.what()).find("retry_writes") != std::string::npos);
            CHECK(cache.append(one.id(), layer, data.input(layer, one.tokens())).code() ==
                  kvtl::errc::writes_pending);
            std::vector<float> turn(5 * data.query_floats());
            CHECK(cache.prefill(one.id(), layer, data.input(layer, one.tokens(), 5), turn).code() ==
                  kvtl::errc::writes_pending);
            CHECK(take(cache, one.id()) == before);
            std::size_t rows = 0; // reading is still possible
            require_ok(cache.prefetch(one.id(), layer, data.q(layer, one.tokens())));
            const kvtl::status read = cache.select(one.id(), layer, data.q(layer, one.tokens()),
                                                   [&](std::size_t, auto keys, auto) { rows += keys.count; });
            if (read.ok()) CHECK(rows == cache.tokens(one.id(), layer) * small.kv_heads);
            f.fail_write.first = f.writes.load();
            f.fail_write.count = 1U << 30;
            CHECK(cache.retry_writes(one.id()).code() == kvtl::errc::writes_pending);
            f.fail_write.first = kvtl::io_faults::never;
            require_ok(cache.retry_writes(one.id()));
            const snapshot after = take(cache, one.id()); // what was read for nothing has been counted
            CHECK(after.tokens == before.tokens);
            CHECK(after.words == before.words);
            CHECK(after.numbers == before.numbers);
        });
    }
    one.check_tokens();
    CHECK(refused > 20);
    CHECK(cache.stats().splits > 10);
    CHECK(one.error() < exact);
}

TEST_CASE("a sequence with failed writes can be ended") {
    const drift data(small, max_tokens, 35);
    auto c = tight<paged>(max_tokens);
    c.memory_bytes += std::size_t{192} << 10;
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    one.prefill(150);
    auto& f = *c.io.faults;
    auto& store = kvtl::shard_access::of(cache, 0).store();
    f.fail_write.first = f.writes.load();
    f.fail_write.count = 1U << 30;
    for (int i = 0; i < 100 && !store.has_failed_writes(store.pool_of(0)); ++i) one.decode(1);
    REQUIRE(store.has_failed_writes(store.pool_of(0)));
    one.end();
    CHECK(store.layout().used() == 0);
    CHECK(store.pool_of(0).in_use() == 0);
    f.fail_write.first = kvtl::io_faults::never;
    reader<paged> two(cache, data, 3);
    two.prefill(150);
    two.decode(100);
    CHECK(two.error() < exact);
}

TEST_CASE("wrong input is refused, named, and changes nothing") {
    const drift data(small, max_tokens + 10, 36);
    auto c = tight<paged>(max_tokens);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 5);
    one.prefill(150);
    one.decode(20);
    const auto seq = one.id();
    const std::size_t t = one.tokens();
    const snapshot before = take(cache, seq);
    std::vector<float> out(20 * data.query_floats());
    const std::span<float> row = std::span(out).first(data.query_floats());
    const auto good = data.input(0, t);
    const auto refused = [&](const kvtl::status& s, kvtl::errc code, const char* word) {
        CAPTURE(std::string(s.what()));
        CHECK(s.code() == code);
        CHECK(std::string(s.what()).find(word) != std::string::npos);
        CHECK(take(cache, seq) == before);
    };
    using kvtl::errc;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (const char* which : {"q", "k", "v"}) {
            const auto copied = [](std::span<const float> all) {
                return std::vector<float>(all.begin(), all.end());
            };
            std::vector<float> q = copied(good.q.floats()), k = copied(good.k.floats()),
                               v = copied(good.v.floats());
            (*which == 'q' ? q : *which == 'k' ? k : v).back() = bad;
            kvtl::layer_input in;
            in.q = q, in.k = k, in.v = v;
            const std::string word = std::string(which) + " holds a NaN";
            refused(cache.attend(seq, 0, in, row), errc::invalid_argument, word.c_str());
            refused(cache.prefill(seq, 0, in, row), errc::invalid_argument, word.c_str());
            if (*which != 'q') {
                in.q = {};
                refused(cache.append(seq, 0, in), errc::invalid_argument, word.c_str());
            } else {
                refused(cache.prefetch(seq, 0, q), errc::invalid_argument, word.c_str());
                refused(cache.select(seq, 0, q, [](auto&&...) {}), errc::invalid_argument, word.c_str());
            }
        }
    }
    auto in = good;
    in.k = good.k.first(good.k.size() - 1);
    refused(cache.attend(seq, 0, in, row), errc::invalid_argument,
            "k has 127 numbers; valid: a positive multiple of");
    refused(cache.prefill(seq, 0, in, row), errc::invalid_argument, "k has 127 numbers");
    in = good;
    in.v = {};
    refused(cache.attend(seq, 0, in, row), errc::invalid_argument, "v has 0 numbers; valid: 128");
    in = good;
    in.q = data.q(0, t, 2);
    refused(cache.attend(seq, 0, in, row), errc::invalid_argument, "q has 512 numbers; valid: 256");
    refused(cache.attend(seq, 0, good, out), errc::invalid_argument, "out has 5120 numbers; valid: 256");
    refused(cache.attend(seq, 0, good, {}), errc::invalid_argument, "out");
    in = good;
    in.q = {};
    refused(cache.attend(seq, 0, in, {}), errc::invalid_argument, "attend");
    refused(cache.prefill(seq, 0, {}, row), errc::invalid_argument, "k has 0 numbers");
    refused(cache.attend(seq, 2, good, row), errc::out_of_range, "layer is 2; valid: 0 to 1");
    refused(cache.attend(seq, 0, good, row, 1), errc::out_of_range, "shard is 1; valid: 0 to 0");
    refused(cache.attend({seq.slot, seq.generation + 1}, 0, good, row), errc::not_open, "sequence 0");
    refused(cache.attend({seq.slot + 1, 1}, 0, good, row), errc::not_open, "sequence 1");
    refused(cache.end({7, 1}), errc::not_open, "end");
    std::vector<float> long_out(max_tokens * data.query_floats());
    refused(cache.prefill(seq, 0, data.input(0, 0, max_tokens), long_out), errc::out_of_range,
            "max_tokens = 420");

    one.decode(max_tokens - t); // to the brim, and not one more
    for (std::size_t l = 0; l < small.layers; ++l) {
        const kvtl::status s = cache.attend(seq, l, data.input(l, max_tokens), row);
        CHECK(s.code() == errc::out_of_range);
        CHECK(cache.append(seq, l, data.input(l, max_tokens)).code() == errc::out_of_range);
        CHECK(cache.prefill(seq, l, data.input(l, max_tokens), row).code() == errc::out_of_range);
    }
    one.check_tokens();
    CHECK(one.error() < exact);
    one.end();
    CHECK(cache.attend(seq, 0, good, row).code() == errc::not_open); // its id never comes back
    reader<paged> again(cache, data, 5);
    CHECK(again.id().slot == seq.slot);
    CHECK(cache.attend(seq, 0, good, row).code() == errc::not_open);
    again.prefill(30);
    auto unfinished = data.input(0, 30, 10);
    again.end();
    reader<paged> third(cache, data, 5);
    unfinished = data.input(0, 0, 10);
    unfinished.last_chunk = false;
    require_ok(cache.prefill(third.id(), 0, unfinished, std::span(out).first(10 * data.query_floats())));
    CHECK(cache.attend(third.id(), 0, good, row).code() ==
          errc::invalid_argument); // the prompt is not complete
    CHECK(cache.tokens(third.id(), 0) == 10);
}

TEST_CASE("a layer fails: rewind_to takes the step, the draft or the chunk back in those before it") {
    // All entries are attended, so that what comes after can be compared with dense attention.
    for (const std::uint32_t bad_layer : {0U, 1U}) {
        const drift data(small, max_tokens, 41);
        auto c = tight<paged>(max_tokens);
        auto& f = *c.io.faults;
        auto cache = open_cache<paged>(c);
        reader<paged> one(cache, data);
        std::size_t failed = 0;
        /// One pass over the layers that fails in bad_layer if the device is asked; then nothing has happened.
        const auto failing = [&](std::size_t n, bool prompt, bool last) {
            bool ok = true;
            for (std::uint32_t l = 0; l < small.layers && ok; ++l) {
                std::vector<float> out(n * data.query_floats());
                auto in = data.input(l, one.tokens(), n);
                in.last_chunk = last;
                if (l == bad_layer) {
                    f.fail_read.count = f.fail_write.count = 1000;
                    f.fail_read.first = f.reads.load();
                    f.fail_write.first = f.writes.load();
                }
                ok = (prompt ? cache.prefill(one.id(), l, in, out) : cache.attend(one.id(), l, in, out)).ok();
                f.fail_read.first = f.fail_write.first = kvtl::io_faults::never;
            }
            failed += ok ? 0 : 1;
            require_ok(cache.retry_writes(one.id()));
            require_ok(cache.rewind_to(one.id(), one.tokens()));
            one.check_tokens();
        };
        failing(90, true, false);
        one.prefill(90); // the same tokens, this time a whole prompt
        one.end();

        auto again = reader<paged>(cache, data);
        std::swap(one, again);
        failing(90, true, false);
        for (std::uint32_t l = 0; l < small.layers; ++l) { // a first chunk that stays
            std::vector<float> out(90 * data.query_floats());
            auto in = data.input(l, 0, 90);
            in.last_chunk = false;
            require_ok(cache.prefill(one.id(), l, in, out));
        }
        one.advance(90);
        failing(60, true, false);
        one.prefill(60);
        for (int i = 0; i < 60; ++i) {
            failing(static_cast<std::size_t>(1 + i % 4), false, true);
            one.decode(1);
        }
        CHECK(one.error() < exact);
        CHECK(failed > 10);
    }
}

TEST_CASE("rewind_to says when it is too late, and then nothing has changed") {
    const drift data(small, max_tokens, 43);
    auto cache = open_cache<paged>(tight<paged>(max_tokens));
    reader<paged> one(cache, data);
    one.prefill(100);
    one.decode(3);
    const kvtl::status refused = cache.rewind_to(one.id(), 90);
    CHECK(refused.code() == kvtl::errc::out_of_range);
    one.check_tokens();
    one.decode(3);
    require_ok(cache.rewind_to(one.id(), 500)); // nobody has that many
    one.check_tokens();
    CHECK(one.error() < exact);
}

TEST_CASE_TEMPLATE("rewind_to does not mix thinned prompts with whole ones", Preset,
                   kvtl::presets::snapkv_group, kvtl::presets::snapkv_then_dynakv, kvtl::presets::dynamickv) {
    using cache_t = kvtl::kv_manager<without_file<Preset>>;
    const drift data(small, max_tokens, 47);
    typename cache_t::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = c.keep_tokens = 64;
    c.window_tokens = 16;
    c.memory_bytes = 64 << 20;
    auto cache = open_cache<cache_t>(c);
    reader<cache_t> one(cache, data, 0);
    const auto chunk = [&](std::size_t layer, std::size_t n, bool last) {
        std::vector<float> out(n * data.query_floats());
        auto in = data.input(layer, one.tokens(), n);
        in.last_chunk = last;
        require_ok(cache.prefill(one.id(), layer, in, out));
    };
    for (std::size_t l = 0; l < small.layers; ++l) chunk(l, 200, false);
    one.advance(200);
    chunk(0, 8, true); // and layer 1 fails, let us say
    const kvtl::status refused = cache.rewind_to(one.id(), 200);
    REQUIRE_FALSE(refused.ok());
    CHECK(std::string(refused.what())
              .find("layer 0 has thinned out the prompt whose last chunk layer 1 waits for") !=
          std::string::npos);
    CHECK(cache.tokens(one.id(), 0) == 208);
    one.end();
}

} // namespace manager_failures_test
