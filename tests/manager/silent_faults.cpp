// Devices that fail, with and without saying so, at every read and at every write of a run: a fault is reported or does no
// harm. Outputs up to a report are those of a run without faults, no call goes on for ever, and behind a fault that does not
// last the cache serves other sequences as if nothing had happened.
// SPDX-License-Identifier: MIT
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

namespace manager_silent_faults_test {

using namespace kvtl_test;

namespace {

using kvtl::io_faults;
using wrong = io_faults::wrong;
template <class Preset>
using cache_on_faulty = kvtl::kv_manager<f32_on<Preset, kvtl::faulty<kvtl::in_memory>>>;

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t prompt = 130, steps = 24, max_tokens = 180;

enum class kind : std::uint8_t { error, error_late, flipped_bit, lost, torn, misdirected, hung };
constexpr std::pair<kind, const char*> kinds[] = {{kind::error, "error"},
                                                  {kind::error_late, "error after the transfer"},
                                                  {kind::flipped_bit, "flipped bit"},
                                                  {kind::lost, "lost"},
                                                  {kind::torn, "torn"},
                                                  {kind::misdirected, "misdirected"},
                                                  {kind::hung, "hung"}};

void arm(io_faults& f, kvtl::io_verb verb, kind what, std::uint64_t nth, bool for_ever) {
    const bool read = verb == kvtl::io_verb::read;
    if (what == kind::flipped_bit) {
        f.corrupt_read = nth;
    } else if (what == kind::error || what == kind::error_late) {
        f.fail_late = what == kind::error_late;
        auto& w = read ? f.fail_read : f.fail_write;
        w.count = for_ever ? io_faults::never : 1;
        w.first = nth;
    } else {
        auto& w = read ? f.wrong_read : f.wrong_write;
        w.how = what == kind::lost          ? wrong::lost
                : what == kind::torn        ? wrong::torn
                : what == kind::misdirected ? wrong::misdirected
                                            : wrong::hung;
        w.count = for_ever ? io_faults::never : 1;
        w.first = nth;
    }
}
void disarm(io_faults& f) {
    f.fail_read.first = f.fail_write.first = f.wrong_read.first = f.wrong_write.first = f.corrupt_read =
        io_faults::never;
}

/// The run of an engine up to the first call that fails: what came out, and why it ended.
struct outcome {
    std::vector<float> outputs;
    kvtl::status error;
};
template <class Cache> outcome play(Cache& cache, const drift& data, std::size_t chunk) {
    outcome o;
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    const auto call = [&](std::size_t first, std::size_t n, bool prefill, bool last) {
        for (std::size_t l = 0; l < small.layers && o.error.ok(); ++l) {
            std::vector<float> out(n * data.query_floats(), NAN);
            auto in = data.input(l, first, n);
            in.last_chunk = last;
            o.error = prefill ? cache.prefill(*seq, l, in, out) : cache.attend(*seq, l, in, out);
            if (o.error.ok()) o.outputs.insert(o.outputs.end(), out.begin(), out.end());
        }
    };
    for (std::size_t t = 0; t < prompt && o.error.ok(); t += chunk)
        call(t, std::min(chunk, prompt - t), true, t + chunk >= prompt);
    for (std::size_t t = prompt; t < prompt + steps && o.error.ok(); ++t) call(t, 1, false, true);
    static_cast<void>(cache.end(*seq));
    return o;
}

template <class Cache> void every_transfer_goes_wrong(typename Cache::config c, std::size_t chunk) {
    c.shape = small;
    c.max_tokens = max_tokens;
    c.attend_tokens = 64;
    c.io_timeout_ms = 1;
    c.memory_bytes = least_memory<Cache>(c);
    c.io.faults = std::make_shared<io_faults>();
    io_faults& f = *c.io.faults;
    const drift data(small, max_tokens, 41);
    std::vector<float> should;
    {
        auto cache = open_cache<Cache>(c);
        auto undisturbed = play(cache, data, chunk);
        require_ok(undisturbed.error);
        should = std::move(undisturbed.outputs);
    }
    const std::uint64_t reads = f.reads.load(), writes = f.writes.load();
    CHECK(reads > 20);
    CHECK(writes > 5);
    for (const auto& [what, name] : kinds) {
        CAPTURE(name);
        std::size_t reported = 0;
        for (const auto verb : {kvtl::io_verb::read, kvtl::io_verb::write}) {
            const bool read = verb == kvtl::io_verb::read;
            if ((what == kind::flipped_bit && !read) || (what == kind::error_late && read)) continue;
            CAPTURE(read);
            for (std::uint64_t nth = 0; nth < (read ? reads : writes); ++nth)
                for (const bool for_ever : {false, true}) {
                    if (for_ever && what == kind::flipped_bit) continue;
                    CAPTURE(nth);
                    CAPTURE(for_ever);
                    f.reads = f.writes = 0;
                    auto cache = open_cache<Cache>(c);
                    arm(f, verb, what, nth, for_ever);
                    const outcome o = play(cache, data, chunk);
                    disarm(f);
                    reported += o.error.ok() ? 0 : 1;
                    REQUIRE(o.outputs.size() <= should.size());
                    CHECK(o.error.ok() == (o.outputs.size() == should.size()));
                    CHECK(same_bits(o.outputs, {should.begin(), should.begin() + static_cast<std::ptrdiff_t>(
                                                                                     o.outputs.size())}));
                    const outcome next = play(cache, data, chunk);
                    if (what == kind::hung && !next.error.ok()) {
                        CHECK(next.error.code() == kvtl::errc::io_error);
                        continue;
                    }
                    require_ok(next.error);
                    CHECK(same_bits(next.outputs, should));
                }
        }
        CHECK(reported > 0);
    }
}

} // namespace

TEST_CASE("dynakv: whichever transfer goes wrong, no output is wrong") {
    using cache_t = cache_on_faulty<kvtl::presets::dynakv>;
    cache_t::config c;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    every_transfer_goes_wrong<cache_t>(c, 70);
}

TEST_CASE("quest: whichever transfer goes wrong, no output is wrong") {
    every_transfer_goes_wrong<cache_on_faulty<kvtl::presets::quest>>({}, 70);
}

TEST_CASE("snapkv_then_dynakv: whichever transfer goes wrong, no output is wrong") {
    using cache_t = cache_on_faulty<kvtl::presets::snapkv_then_dynakv>;
    cache_t::config c;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 32;
    c.keep_tokens = 110;
    every_transfer_goes_wrong<cache_t>(c, prompt); // memory has no room for chunks that wait
}

} // namespace manager_silent_faults_test
