// Reading ahead, choosing for another kernel, and giving tokens up.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/policies/replace_lifo.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

namespace manager_ahead_test {

using namespace kvtl_test;

namespace {

template <class Preset> using testing = f32_on<Preset, kvtl::faulty<kvtl::in_memory>>;
using paged = kvtl::kv_manager<testing<kvtl::presets::dynakv>>;

constexpr kvtl::shape small{3, 4, 2, 64};

template <class Cache> typename Cache::config config_for(std::size_t attend_tokens) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 500;
    c.attend_tokens = attend_tokens;
    c.window_tokens = 8;
    c.clusterer.tokens_per_cluster = 8;
    c.clusterer.min_entries_to_cluster = 64;
    c.clusterer.pending_entries = 6;
    c.memory_bytes = std::size_t{8} << 20;
    return c;
}

/// A prompt of 200 and 120 steps; `before(reader, layer)` may read ahead.
template <class Cache, class Before>
std::vector<float> decode_with(Cache& cache, const drift& data, Before&& before) {
    reader<Cache> one(cache, data, 0);
    one.prefill(200);
    for (int i = 0; i < 120; ++i) one.step([&](std::size_t layer) { before(one, layer); });
    one.check_tokens();
    return one.outputs();
}

template <class Cache> void prefetch_changes_no_bit() {
    const drift data(small, 500, 21);
    for (const bool smallest : {false, true}) {
        CAPTURE(smallest);
        auto c = config_for<Cache>(96);
        // Not the least: there what is read ahead leaves no frame to a unit that would split, which then waits.
        if (smallest) c.memory_bytes = least_memory<Cache>(c) + (std::size_t{256} << 10);
        auto plain = open_cache<Cache>(c);
        const auto expected = decode_with(plain, data, [](auto&, std::size_t) {});
        CHECK(plain.stats().wasted_bytes == 0);

        c.io.faults = std::make_shared<kvtl::io_faults>(); // completions come late and in another order
        c.io.faults->hold_percent = 60;
        auto knowing = open_cache<Cache>(c);
        const auto with_true_query = decode_with(knowing, data, [&](auto& one, std::size_t layer) {
            require_ok(knowing.prefetch(one.id(), layer, data.q(layer, one.tokens())));
        });
        CHECK(same_bits(with_true_query, expected));
        CHECK(knowing.stats().wasted_bytes == 0);
        CHECK(knowing.stats().chosen_bytes == plain.stats().chosen_bytes);

        auto guessing = open_cache<Cache>(c);
        const auto with_wrong_query = decode_with(guessing, data, [&](auto& one, std::size_t layer) {
            require_ok(guessing.prefetch(one.id(), layer, data.q(layer, (one.tokens() * 7) % 200)));
            // A second guess replaces the first; one for the next layer waits its turn.
            if (one.tokens() % 3 == 0)
                require_ok(guessing.prefetch(one.id(), layer, data.q(layer, (one.tokens() * 5) % 200)));
            if (layer + 1 < small.layers)
                require_ok(guessing.prefetch(one.id(), layer + 1, data.q(layer, one.tokens())));
        });
        // With room for everything the choice does not depend on what is resident; with little room splits
        // may wait for other steps, and only the sum over everything can be compared (below).
        if (!smallest) CHECK(same_bits(with_wrong_query, expected));
        CHECK(guessing.stats().wasted_bytes > 0);
    }
}

/// Every step reads ahead wrongly, and the result still is dense attention over everything.
template <class Cache> void guesses_cost_no_accuracy() {
    const drift data(small, 500, 22);
    auto c = config_for<Cache>(500);
    c.memory_bytes = least_memory<Cache>(c);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, data, 3);
    one.prefill(200);
    for (int i = 0; i < 120; ++i)
        one.step([&](std::size_t layer) {
            for (std::size_t l = layer; l < small.layers; ++l)
                require_ok(cache.prefetch(one.id(), l, data.q(l, (one.tokens() * 7 + l) % 200)));
        });
    CHECK(one.error() < exact);
}

template <class Cache> void selection_equals_attend() {
    const drift data(small, 500, 23);
    auto c = config_for<Cache>(96);
    auto attending = open_cache<Cache>(c);
    reader<Cache> one(attending, data, 0);
    one.prefill(200);

    c.attend_tokens = 95; // attend() counts the arriving token, select() sees the tokens that are there
    auto selecting = open_cache<Cache>(c);
    reader<Cache> two(selecting, data, 0);
    two.prefill(200);

    // The state before token t is the same in both; the engine's kernel adds the arriving token itself.
    oracle::largest_error error;
    std::size_t visited = 0;
    for (int i = 0; i < 60; ++i) {
        const std::size_t t = one.tokens();
        one.decode(1);
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<std::vector<float>> k(small.kv_heads), v(small.kv_heads);
            const auto visit = [&](std::size_t head, kvtl::rows_view<float> keys,
                                   kvtl::rows_view<float> values) {
                for (std::size_t r = 0; r < keys.count; ++r) {
                    k[head].insert(k[head].end(), keys.row(r), keys.row(r) + keys.dim);
                    v[head].insert(v[head].end(), values.row(r), values.row(r) + values.dim);
                }
            };
            require_ok(selecting.select(two.id(), l, data.q(l, t), visit));
            const float* out = one.outputs().data() +
                               (200 * small.layers + (t - 200) * small.layers + l) * data.query_floats();
            for (std::size_t h = 0; h < small.kv_heads; ++h) {
                k[h].insert(k[h].end(), data.key(l, t, h), data.key(l, t, h) + 64);
                v[h].insert(v[h].end(), data.value(l, t, h), data.value(l, t, h) + 64);
                const std::size_t rows = k[h].size() / 64;
                CHECK(rows <= 96);
                visited += rows;
                for (std::size_t g = 0; g < 2; ++g) {
                    const float* q = data.q(l, t).data() + (h * 2 + g) * 64;
                    const auto dense =
                        oracle::attend(q, 0.125, kvtl::rows_view<float>{k[h].data(), rows, 64, 64},
                                       kvtl::rows_view<float>{v[h].data(), rows, 64, 64});
                    for (std::size_t d = 0; d < 64; ++d)
                        error.see(static_cast<double>(out[(h * 2 + g) * 64 + d]) - dense[d]);
                }
            }
            auto in = data.input(l, t);
            in.q = {};
            require_ok(selecting.append(two.id(), l, in));
        }
        two.advance();
    }
    two.check_tokens();
    CHECK(visited > 60 * small.layers * small.kv_heads * 40);
    CHECK(error.value() < exact);
}

/// Tokens that came after a prompt without any read, then everything at once: cold units, a full buffer,
/// pages that are still being written.
template <class Cache> std::size_t selection_is_complete(int appends) {
    const drift data(small, 500, 27);
    auto c = config_for<Cache>(500);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    c.io.faults->hold_percent = 99;
    auto cache = open_cache<Cache>(c);
    std::size_t waiting = 0;
    oracle::largest_error error;
    for (std::size_t prompt = 200; prompt < 210; ++prompt) {
        reader<Cache> one(cache, data, 0);
        one.prefill(prompt);
        for (int i = 0; i < appends; ++i) {
            for (std::size_t l = 0; l < small.layers; ++l)
                require_ok(cache.append(one.id(), l, data.input(l, one.tokens())));
            one.advance();
        }
        const std::size_t t = one.tokens() - 1;
        std::vector<std::vector<float>> k(small.kv_heads), v(small.kv_heads);
        require_ok(cache.select(one.id(), 1, data.q(1, t), [&](std::size_t h, auto keys, auto values) {
            for (std::size_t r = 0; r < keys.count; ++r) {
                k[h].insert(k[h].end(), keys.row(r), keys.row(r) + 64);
                v[h].insert(v[h].end(), values.row(r), values.row(r) + 64);
            }
        }));
        const auto dense = dense_attention<float>(data, 1, t);
        for (std::uint32_t h = 0; h < small.kv_heads; ++h) {
            waiting += kvtl::shard_access::of(cache, 0).store().at(small.kv_heads + h).state().buffered;
            CHECK(k[h].size() == (t + 1) * 64);
            const auto shown = oracle::attend(data.q(1, t).data() + std::size_t{h} * 2 * 64, 0.125,
                                              kvtl::rows_view<float>{k[h].data(), k[h].size() / 64, 64, 64},
                                              kvtl::rows_view<float>{v[h].data(), v[h].size() / 64, 64, 64});
            for (std::size_t d = 0; d < 64; ++d) error.see(shown[d] - dense[std::size_t{h} * 2 * 64 + d]);
        }
        one.end();
    }
    CHECK(error.value() < exact);
    return waiting;
}

} // namespace

TEST_CASE("prefetch changes no bit") {
    prefetch_changes_no_bit<paged>();
}
TEST_CASE("prefetching several layers with wrong guesses and little memory stays exact") {
    guesses_cost_no_accuracy<paged>();
}
TEST_CASE("what select shows is what attend attends") {
    selection_equals_attend<paged>();
}

TEST_CASE("select shows every token once, also those that wait for their unit") {
    CHECK(selection_is_complete<paged>(5) > 20);
}

TEST_CASE("select refuses more than fits at once, and goes on working") {
    const drift data(small, 500, 24);
    auto c = config_for<paged>(500);
    c.max_tokens = 480;
    c.memory_bytes = least_memory<paged>(c);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 4);
    one.prefill(400);
    std::size_t rows = 0;
    const kvtl::status s =
        cache.select(one.id(), 0, data.q(0, 400), [&](std::size_t, auto keys, auto) { rows += keys.count; });
    if (s.ok())
        CHECK(rows == std::size_t{400} * small.kv_heads);
    else
        CHECK(s.code() == kvtl::errc::bound_too_small);
    one.decode(20);
    CHECK(one.error() < exact);
}

/// What select() shows costs the same reads whether it was asked for ahead or not.
template <class Cache> void select_uses_what_came() {
    const drift data(small, 500, 31);
    auto c = config_for<Cache>(200);
    std::uint64_t reads[3], shown[3];
    for (int how = 0; how < 3; ++how) { // as it comes; asked for ahead; ahead, and a token in between
        auto cache = open_cache<Cache>(c);
        reader<Cache> one(cache, data, 0);
        one.prefill(400); // no unit is resident
        const auto before = cache.stats();
        std::size_t rows = 0;
        if (how > 0) require_ok(cache.prefetch(one.id(), 1, data.q(1, 400)));
        if (how == 2) require_ok(cache.append(one.id(), 1, data.input(1, 400)));
        require_ok(cache.select(one.id(), 1, data.q(1, 400),
                                [&](std::size_t, auto keys, auto) { rows += keys.count; }));
        reads[how] = cache.stats().read_bytes - before.read_bytes, shown[how] = rows;
        CHECK(cache.stats().wasted_bytes <=
              8192); // a prefetch counts the token that comes: one unit more or less
    }
    REQUIRE(reads[0] > 0);
    CHECK(shown[1] == shown[0]);
    CHECK(reads[1] <= reads[0] + reads[0] / 8);
    CHECK(reads[2] <= reads[0] + reads[0] / 8);
}
TEST_CASE("what was read ahead for a selection is not read again") {
    select_uses_what_came<paged>();
}

/// A preset that keeps nothing beyond the step that read it.
struct one_step : testing<kvtl::presets::dynakv> {
    using replacement = kvtl::no_caching;
};
TEST_CASE("what was read ahead for a selection is not read again (nothing stays)") {
    using cache_t = kvtl::kv_manager<one_step>;
    const drift data(small, 500, 31);
    auto c = config_for<cache_t>(200);
    std::uint64_t reads[2];
    for (const bool hint : {false, true}) {
        auto cache = open_cache<cache_t>(c);
        reader<cache_t> one(cache, data, 0);
        one.prefill(400);
        const std::uint64_t before = cache.stats().read_bytes;
        if (hint) require_ok(cache.prefetch(one.id(), 1, data.q(1, 400)));
        require_ok(cache.select(one.id(), 1, data.q(1, 400), [](std::size_t, auto, auto) {}));
        reads[hint] = cache.stats().read_bytes - before;
    }
    REQUIRE(reads[0] > 0);
    CHECK(reads[1] <= reads[0] + reads[0] / 8);
}

TEST_CASE("a selection gives up hints where they have all that carries reads") {
    const drift data(small, 500, 36);
    auto c = config_for<paged>(96);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    one.prefill(300);
    for (const std::size_t l : {0U, 2U})
        require_ok(cache.prefetch(one.id(), l, data.q(l, 7))); // two, for one sequence
    require_ok(cache.select(one.id(), 1, data.q(1, 300), [](std::size_t, auto, auto) {}));
    CHECK(cache.stats().wasted_bytes > 0);
    one.decode(10);
    one.check_tokens();
}

TEST_CASE("a guess that a selection does not use is counted") {
    const drift data(small, 500, 37);
    auto c = config_for<paged>(60);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    one.prefill(400);
    require_ok(cache.prefetch(one.id(), 1, data.q(1, 3)));
    require_ok(cache.select(one.id(), 1, data.q(1, 400), [](std::size_t, auto, auto) {}));
    CHECK(cache.stats().wasted_bytes > 0);
}

/// A choice may take half of the frames, so that it takes two hints to leave none for a third.
TEST_CASE("hints for other layers take no frames from a selection") {
    const drift data(small, 500, 32);
    auto c = config_for<paged>(250);
    c.max_sequences = 2;
    c.share = true;
    c.lend_tables = false;
    const std::size_t least = least_memory<paged>(c);
    std::size_t shown = 0;
    for (std::size_t more = 0; more < (std::size_t{3} << 20); more += std::size_t{96} << 10) {
        c.memory_bytes = least + more;
        kvtl::status alone, hinted;
        for (const bool hint : {false, true}) {
            auto cache = open_cache<paged>(c);
            reader<paged> one(cache, data, 0), two(cache, data, 50);
            one.prefill(400);
            two.prefill(400);
            if (hint)
                for (const std::size_t l : {0U, 2U}) require_ok(cache.prefetch(two.id(), l, data.q(l, 400)));
            (hint ? hinted : alone) =
                cache.select(one.id(), 1, data.q(1, 400), [](std::size_t, auto, auto) {});
        }
        CAPTURE(more);
        CHECK_MESSAGE((hinted.ok() || !alone.ok()), std::string(hinted.what()));
        shown += alone.ok();
    }
    CHECK(shown > 0);
}

TEST_CASE("reads ahead keep no token from being appended") {
    const drift data(small, 500, 33);
    auto c = config_for<paged>(96);
    c.max_sequences = 2;
    c.share = true;
    c.lend_tables = false;
    c.memory_bytes = least_memory<paged>(c);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0), two(cache, data, 100);
    one.prefill(200);
    two.prefill(200);
    for (std::size_t l = 0; l < small.layers; ++l)
        require_ok(cache.prefetch(two.id(), l, data.q(l, two.tokens())));
    for (int i = 0; i < 60; ++i) {
        for (std::size_t l = 0; l < small.layers; ++l)
            require_ok(cache.append(one.id(), l, data.input(l, one.tokens())));
        one.advance();
    }
    one.check_tokens();
}

TEST_CASE("what was read ahead in vain counts, also where a step takes its frames") {
    const drift data(small, 500, 34);
    auto c = config_for<paged>(96);
    c.memory_bytes = least_memory<paged>(c);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    one.prefill(300);
    std::uint64_t ahead = 0, wasted = 0;
    for (int i = 0; i < 20; ++i)
        one.step([&](std::size_t layer) {
            CHECK(cache.stats().wasted_bytes >= wasted); // it never falls
            wasted = cache.stats().wasted_bytes;
            const std::uint64_t before = cache.stats().read_bytes;
            require_ok(
                cache.prefetch(one.id(), (layer + 1) % small.layers, data.q(0, (one.tokens() * 7) % 200)));
            ahead += cache.stats().read_bytes - before;
        });
    REQUIRE(ahead > 0);
    CHECK(cache.stats().wasted_bytes > ahead / 8); // of guesses that have nothing to do with what is asked
}

TEST_CASE("how many tokens a cache has may be asked while it shows rows") {
    const drift data(small, 500, 27);
    auto c = config_for<paged>(500);
    c.max_sequences = 2;
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0), two(cache, data, 0);
    one.prefill(300), two.prefill(200);
    std::size_t rows = 0;
    require_ok(cache.select(one.id(), 1, data.q(1, 300), [&](std::size_t head, auto keys, auto) {
        CHECK(cache.tokens(two.id(), 0) == 200); // of other lanes than those that are being shown
        CHECK(cache.kept_entries(two.id(), 2) == 200 * small.kv_heads);
        CHECK(cache.stats().units > 0);
        CHECK(head < small.kv_heads);
        rows += keys.count;
    }));
    CHECK(rows > 0);
    std::size_t again = 0;
    require_ok(cache.select(one.id(), 1, data.q(1, 300),
                            [&](std::size_t, auto keys, auto) { again += keys.count; }));
    CHECK(rows == again);
}

TEST_CASE("what a prefetch and a selection read is timed as what a step reads") {
    const drift data(small, 500, 28);
    for (const bool timed : {false, true}) {
        CAPTURE(timed);
        auto c = config_for<paged>(96);
        c.memory_bytes = least_memory<paged>(c) + (std::size_t{256} << 10);
        c.time_phases = timed;
        auto cache = open_cache<paged>(c);
        reader<paged> one(cache, data, 0);
        one.prefill(300);
        const auto before = cache.stats();
        REQUIRE(before.phase_ns.fetch_wait == 0); // of decode
        require_ok(cache.prefetch(one.id(), 0, data.q(0, 300)));
        const auto asked = cache.stats();
        REQUIRE(asked.read_bytes > before.read_bytes);
        CHECK((asked.phase_ns.fetch_wait > 0) == timed);
        CHECK((asked.phase_ns.score > 0) == timed);
        require_ok(cache.select(one.id(), 1, data.q(1, 300), [](std::size_t, auto, auto) {}));
        const auto shown = cache.stats();
        REQUIRE(shown.read_bytes > asked.read_bytes);
        CHECK((shown.phase_ns.fetch_wait > asked.phase_ns.fetch_wait) == timed);
        CHECK(shown.phase_ns.append == 0);
        one.decode(1);
        CHECK((cache.stats().phase_ns.append > 0) == timed);
    }
}

TEST_CASE("a step that failed counts for nothing but its time") {
    const drift data(small, 500, 29);
    auto c = config_for<paged>(96);
    c.memory_bytes = least_memory<paged>(c) + (std::size_t{256} << 10);
    c.time_phases = true;
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data, 0);
    one.prefill(300);
    one.decode(2);
    const auto before = cache.stats();
    c.io.faults->fail_read.first = c.io.faults->reads.load();
    std::vector<float> out(data.query_floats());
    REQUIRE(cache.attend(one.id(), 0, data.input(0, 302), out).code() == kvtl::errc::io_error);
    c.io.faults->fail_read.first = kvtl::io_faults::never;
    const auto after = cache.stats();
    CHECK(after.chosen_units == before.chosen_units);
    CHECK(after.steps == before.steps);
    CHECK(after.phase_ns.score > before.phase_ns.score);
    CHECK(after.phase_ns.choose > before.phase_ns.choose);
    CHECK(after.phase_ns.fetch_wait > before.phase_ns.fetch_wait);
    one.decode(5);
    one.check_tokens();
}

TEST_CASE("rewind gives up tokens of the window, and no others") {
    const drift data(small, 500, 25), other(small, 500, 26);
    auto c = config_for<paged>(500);
    auto cache = open_cache<paged>(c);
    reader<paged> one(cache, data);
    one.prefill(200);
    one.decode(30);
    const std::size_t tokens = one.tokens();
    for (const std::size_t n : {std::size_t{9}, std::size_t{230}, std::size_t{1} << 40}) {
        const kvtl::status s = cache.rewind(one.id(), n);
        CHECK(s.code() == kvtl::errc::out_of_range);
        CHECK(std::string(s.what()).find("window") != std::string::npos);
        one.check_tokens();
    }
    // Five steps of another stream, which are then taken back: nothing of them may stay.
    for (int i = 0; i < 5; ++i)
        for (std::size_t l = 0; l < small.layers; ++l) {
            std::vector<float> out(data.query_floats());
            require_ok(cache.attend(one.id(), l, other.input(l, 300 + static_cast<std::size_t>(i)), out));
        }
    require_ok(cache.rewind(one.id(), 5));
    CHECK(one.tokens() == tokens);
    one.check_tokens();
    one.decode(30);
    require_ok(cache.rewind(one.id(), 0));
    CHECK(one.error() < exact);
    one.prefill(20);
    CHECK(one.error() < exact);
    one.rewind(8);
    one.decode(10);
    CHECK(one.error() < exact);
}

} // namespace manager_ahead_test
