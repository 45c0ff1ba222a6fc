// What is known of the units of layers whose memory others have: it is on storage, comes back as it was, and only what
// has changed goes there.
// SPDX-License-Identifier: MIT
#include <kvtl/core/store/lent_representatives.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "support/cache_fixture.hpp"

namespace manager_lent_representatives_test {

using namespace kvtl_test;

namespace {

struct on_faulty : kvtl::presets::dynakv_estimate_virtualised {
    using io = kvtl::faulty<kvtl::in_memory>;
};
struct kept : on_faulty {
    using schedule = kvtl::on_demand;
};
using lent_cache = kvtl::kv_manager<on_faulty>;
using kept_cache = kvtl::kv_manager<kept>;

constexpr kvtl::shape deep{8, 4, 2, 64};
constexpr std::size_t max_tokens = 1200;

template <class Cache> typename Cache::config config_of(std::size_t attend_tokens) {
    typename Cache::config c;
    c.shape = deep;
    c.max_tokens = max_tokens;
    c.attend_tokens = attend_tokens;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.memory_bytes = std::size_t{16} << 20;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    return c;
}
} // namespace

TEST_CASE("what is known of units takes the memory of two layers, of all sequences that share") {
    for (const std::size_t sequences : {std::size_t{1}, std::size_t{3}})
        for (const bool share : {false, true}) {
            CAPTURE(sequences);
            CAPTURE(share);
            auto lent = config_of<lent_cache>(96);
            auto held = config_of<kept_cache>(96);
            lent.max_sequences = held.max_sequences = sequences;
            lent.share = held.share = share;
            const auto some = lent_cache::least_parts(lent);
            const auto all = kept_cache::least_parts(held);
            REQUIRE(some.ok());
            REQUIRE(all.ok());
            // Each piece is rounded up to pages. The spread of a lane has memory all the time.
            const std::size_t spread = lent_cache::types::spread ? sequences * deep.layers * deep.kv_heads *
                                                                       deep.head_dim * sizeof(float)
                                                                 : 0;
            const std::size_t pages = 2 * (share ? 1 : sequences) * 4096;
            CHECK(some->index >= all->index * 2 / deep.layers);
            CHECK(some->index <= all->index * 2 / deep.layers + pages + spread);
        }
}

TEST_CASE("what has not changed is not written again") {
    auto c = config_of<lent_cache>(96);
    auto cache = open_cache<lent_cache>(c);
    const drift data(deep, max_tokens, 5);
    reader<lent_cache> one(cache, data, 0);
    one.prefill(1000);
    const kvtl::statistics prompt = cache.stats();
    CHECK(prompt.representative_bytes_written > 0);
    one.decode(50);
    const kvtl::statistics after = cache.stats();
    const std::uint64_t read = after.representative_bytes_read - prompt.representative_bytes_read,
                        written = after.representative_bytes_written - prompt.representative_bytes_written;
    // A step of a layer reads what it has of about 2 * 1000 / 8 units, of 2 * (64 + 4) bytes each at least.
    CHECK(read > std::uint64_t{50} * deep.layers * 250 * 2 * 68);
    CHECK(written > 0);
    CHECK(written < read / 2);
    // A look at a layer changes nothing, but what the last step has changed goes first.
    std::uint64_t so_far = 0;
    for (std::size_t round = 0; round < 4; ++round) {
        for (std::size_t l = 0; l < deep.layers; ++l) require_ok(cache.prefetch(one.id(), l, data.q(l, 0)));
        const kvtl::statistics looked = cache.stats();
        CHECK(looked.representative_bytes_read > after.representative_bytes_read);
        if (round > 0) CHECK(looked.representative_bytes_written == so_far);
        so_far = looked.representative_bytes_written;
    }
}

TEST_CASE("a layer that cannot be told what its units are cannot be called until it can") {
    const drift data(deep, max_tokens, 6);
    auto c = config_of<lent_cache>(max_tokens); // everything, so that dense attention is the reference
    c.read_through_pages = 0;                   // a flipped bit of what nobody wants would be no damage
    for (const bool corrupt : {false, true}) {
        CAPTURE(corrupt);
        auto& f = *c.io.faults;
        auto cache = open_cache<lent_cache>(c);
        reader<lent_cache> one(cache, data, 5);
        one.prefill(600);
        std::size_t refused = 0;
        for (std::size_t i = 0; i < 60; ++i)
            one.step([&](std::size_t layer) {
                if ((i + layer) % deep.layers != 1) return;
                // What was read while nobody waited is read again, so all reads of the call have to fail.
                std::vector<float> out(data.query_floats());
                const std::size_t other = (layer + deep.layers / 2) % deep.layers; // has no memory now
                if (corrupt)
                    f.corrupt_read = f.reads.load(), f.fail_read.first = f.reads.load() + 1;
                else
                    f.fail_read.first = f.reads.load();
                f.fail_read.count = 1U << 30;
                const kvtl::status s = cache.prefetch(one.id(), other, data.q(other, 1));
                f.fail_read.first = f.corrupt_read = kvtl::io_faults::never;
                CHECK((s.code() == kvtl::errc::io_error || s.code() == kvtl::errc::corrupt));
                refused += s.ok() ? 0U : 1U;
                CHECK(cache.tokens(one.id(), other) >= one.tokens());
                require_ok(cache.prefetch(one.id(), other, data.q(other, 1)));
            });
        CHECK(refused == 60);
        one.check_tokens();
        CHECK(one.error() < 2e-3); // entries are f16
    }
}

TEST_CASE("shards that have whole sequences, several each") {
    auto c = config_of<lent_cache>(max_tokens);
    c.max_sequences = 4;
    c.shards = 2;
    c.shard_by = kvtl::division::sequences;
    c.memory_bytes = *lent_cache::least_memory(c);
    c.io.faults->hold_percent = 50;
    auto cache = open_cache<lent_cache>(c);
    const drift data(deep, max_tokens, 8), more(deep, max_tokens, 9);
    std::vector<reader<lent_cache>> all;
    for (std::size_t s = 0; s < 4; ++s) all.emplace_back(cache, s % 2 == 0 ? data : more, 5);
    for (std::size_t s = 0; s < 4; ++s) all[s].prefill(200 + 50 * s);
    for (std::size_t i = 0; i < 40; ++i)
        for (auto& one : all) one.decode(1);
    for (auto& one : all) {
        one.check_tokens();
        CHECK(one.error() < 2e-3);
    }
}

TEST_CASE("reading again what did not come does not meet what another layer is being read") {
    auto c = config_of<lent_cache>(max_tokens);
    auto& f = *c.io.faults;
    c.read_through_pages = 0;
    auto cache = open_cache<lent_cache>(c);
    const drift data(deep, max_tokens, 10);
    reader<lent_cache> one(cache, data, 5);
    one.prefill(800);
    one.decode(2);
    for (std::size_t i = 0; i < 40; ++i) {
        const std::size_t x = 1 + i % 3, l = x + 1, m = x + 3; // none has memory behind a step
        f.fail_read.count = 1U << 30;
        f.fail_read.first = f.reads.load();
        CHECK_FALSE(cache.prefetch(one.id(), x, data.q(x, 1)).ok());
        require_ok(cache.before_query(one.id(), l)); // what is read now does not come
        f.fail_read.first = kvtl::io_faults::never;
        f.hold_percent = 90;
        require_ok(cache.before_query(one.id(), m)); // on its way
        require_ok(cache.prefetch(one.id(), l, data.q(l, 1)));
        f.hold_percent = 0;
        one.decode(1);
    }
    one.check_tokens();
    CHECK(one.error() < 2e-3);
}

TEST_CASE("a disk without room for it is an error before anything is accepted") {
    auto c = config_of<lent_cache>(96);
    c.io.faults->full_beyond = 0;
    auto cache = open_cache<lent_cache>(c);
    const drift data(deep, max_tokens, 7);
    const auto seq = cache.begin();
    REQUIRE(seq.ok());
    std::vector<float> out(100 * data.query_floats());
    const kvtl::status s = cache.prefill(*seq, 0, data.input(0, 0, 100), out);
    CHECK(s.code() == kvtl::errc::disk_full);
    CHECK(cache.tokens(*seq, 0) == 0);
    c.io.faults->full_beyond = kvtl::io_faults::never;
    for (std::size_t l = 0; l < deep.layers; ++l)
        require_ok(cache.prefill(*seq, l, data.input(l, 0, 100), out));
    CHECK(cache.tokens(*seq, 0) == 100);
}

} // namespace manager_lent_representatives_test
