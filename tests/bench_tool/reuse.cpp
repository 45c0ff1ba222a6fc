// What `kvtl-bench reuse` says: the wrapper changes nothing, the replay obeys the manager's rules, the
// probabilities and rates are those of small logs worked out by hand.
// SPDX-License-Identifier: MIT
#include "reuse.hpp"

#include <kvtl/io/in_memory.hpp>
#include <kvtl/policies/replace_cluster_aligned.hpp>
#include <kvtl/policies/replace_fifo.hpp>
#include <kvtl/policies/replace_lru.hpp>
#include <kvtl/policies/replace_s3_fifo.hpp>
#include <kvtl/policies/replace_sieve.hpp>
#include <kvtl/policies/replace_slru.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "co_retrieved.hpp"
#include "contracts/io.hpp"
#include "error.hpp"
#include "placement.hpp"
#include "replay.hpp"
#include "support/replacement_models.hpp"
#include "traced_entries.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>

using bench::decision;
using bench::decision_event;
using kvtl_test::scratch_folder;

namespace {

struct plain : kvtl::presets::dynakv {
    using io = kvtl::in_memory;
};
struct observed : plain {
    using replacement = bench::traced<kvtl::cluster_aligned>;
    using index = bench::traced_entries<kvtl::centroid>;
};

/// 400 tokens of prompt and 200 steps over keys that come and go in topics.
template <class Preset>
kvtl::statistics small_run(std::vector<float>& outputs, bench::decision_log* log = nullptr,
                           bench::entry_log* entries = nullptr) {
    using manager = kvtl::kv_manager<Preset>;
    typename manager::config c;
    c.shape = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 32};
    c.max_tokens = 600;
    c.memory_bytes = 560 << 10;
    c.attend_tokens = 96;
    if constexpr (requires { c.replacement.log; }) c.replacement.log = log, c.index.log = entries;
    auto opened = manager::open(c);
    REQUIRE_MESSAGE(opened.ok(), opened.error().message);
    auto seq = opened->begin();
    REQUIRE(seq.ok());
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> topics(6 * 64), q(400 * 128), k(400 * 64), v(400 * 64), out(128);
    for (float& x : topics) x = 3 * normal(random);
    const auto fill = [&](std::size_t tokens, std::size_t first) {
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t d = 0; d < 64; ++d) {
                const float centre = topics[(first + t) / 9 % 6 * 64 + d];
                k[t * 64 + d] = centre + normal(random), v[t * 64 + d] = normal(random);
                q[t * 128 + d] = centre + normal(random), q[t * 128 + 64 + d] = centre + normal(random);
            }
        bench::mark_tokens(std::span(v).first(tokens * 64), first, 2, 32);
    };
    for (std::uint32_t l = 0; l < 2; ++l) {
        fill(400, 0);
        REQUIRE(opened->prefill(*seq, l, {.q = q, .k = k, .v = v}, {}).ok());
    }
    for (std::uint32_t t = 0; t < 200; ++t)
        for (std::uint32_t l = 0; l < 2; ++l) {
            fill(1, 400 + t);
            kvtl::layer_input in;
            in.q = std::span(q).first(128), in.k = std::span(k).first(64), in.v = std::span(v).first(64);
            if (log != nullptr) log->begin_call(t, l), entries->begin_call();
            REQUIRE(opened->attend(*seq, l, in, out).ok());
            outputs.insert(outputs.end(), out.begin(), out.end());
        }
    return opened->stats();
}

/// Calls of one layer: a step each, what is asked for and written by unit number, all of one frame.
struct tiny_log {
    std::vector<decision_event> events;
    tiny_log& step(std::uint32_t n, std::initializer_list<std::uint32_t> asked,
                   std::initializer_list<std::uint32_t> written = {}, std::uint32_t frames = 1) {
        events.push_back({decision::call, 0, n, 0});
        for (const auto u : asked) events.push_back({decision::miss, 0, u, frames});
        events.push_back({});
        for (const auto u : written) events.push_back({decision::wrote, 0, u, frames});
        return *this;
    }
};

/// A long random log: units of one to three frames, calls of up to four, some written, now and then new ones.
bench::access_sequence random_sequence(std::uint64_t seed) {
    oracle::generator random(seed);
    std::vector<std::uint32_t> frames(30);
    for (auto& f : frames) f = 1 + static_cast<std::uint32_t>(random.below(3));
    std::vector<decision_event> events;
    for (std::uint32_t step = 0; step < 400; ++step) {
        events.push_back({decision::call, 0, step, 0});
        std::set<std::uint32_t> asked;
        while (asked.size() < 4)
            asked.insert(static_cast<std::uint32_t>(std::pow(frames.size(), random.uniform())) - 1);
        for (const auto u : asked) events.push_back({decision::miss, 0, u, frames[u]});
        events.push_back({});
        const std::uint32_t w = *asked.begin();
        if (random.below(3) == 0) {
            frames[w] = 1 + static_cast<std::uint32_t>(random.below(3));
            events.push_back({decision::wrote, 0, w, frames[w]});
        }
        if (random.below(8) == 0) {
            frames.push_back(1 + static_cast<std::uint32_t>(random.below(3)));
            events.push_back(
                {decision::wrote, 0, static_cast<std::uint32_t>(frames.size() - 1), frames.back()});
        }
    }
    return bench::access_sequence(events);
}

const auto ignore = [](const nlohmann::ordered_json&) {};

} // namespace

TEST_CASE("a traced policy keeps the contract and equals what it wraps") {
    bench::decision_log log;
    for (bench::decision_log* to : {static_cast<bench::decision_log*>(nullptr), &log}) {
        bench::traced<kvtl::lru>::config c;
        c.log = to;
        kvtl_test::replacement_contract<bench::traced<kvtl::lru>>(c, [](std::uint32_t, std::uint32_t) {
            struct lru_model : kvtl_test::fifo_model {
                void touch(std::uint32_t h) {
                    kvtl_test::take_out(order, h);
                    order.push_back(h);
                }
                void refresh(std::uint32_t h, kvtl::resident_facts) { touch(h); }
            };
            return lru_model{};
        });
    }
    CHECK(!log.events().empty());
}

TEST_CASE("observing a cache changes nothing, and what is written is what it counts") {
    std::vector<float> a, b;
    bench::decision_log log;
    bench::entry_log entries;
    const kvtl::statistics x = small_run<plain>(a), y = small_run<observed>(b, &log, &entries);
    CHECK(a == b);
    CHECK(x.read_bytes == y.read_bytes);
    CHECK(x.written_bytes == y.written_bytes);
    CHECK(x.resident_chosen_bytes == y.resident_chosen_bytes);
    CHECK(x.resident_bytes_peak == y.resident_bytes_peak);
    std::size_t asked = 0, wrote = 0, ticks = 0, calls = 0;
    for (const decision_event& e : log.events()) {
        asked += e.what == decision::hit || e.what == decision::miss;
        wrote += e.what == decision::wrote;
        ticks += e.what == decision::tick, calls += e.what == decision::call;
    }
    CHECK(asked == y.chosen_units + y.forced_loads);
    CHECK(wrote >= y.splits * 2);
    CHECK(wrote > 300); // 200 steps of four lanes, less what waited
    CHECK(ticks == 200);
    CHECK(calls == 400);
    CHECK(log.frames() > 0);

    // Every entry that has left the window is in one place of each lane, or waits.
    CHECK(entries.calls() == 400);
    std::map<std::uint32_t, bench::placed_lane> lanes;
    std::map<std::uint32_t, std::vector<bench::entry_event>> prompt;
    bench::packed_moves moves;
    for (const bench::entry_event& e : entries.prompt()) prompt[e.lane].push_back(e);
    REQUIRE(prompt.size() == 4);
    for (const auto& [lane, some] : prompt) {
        lanes[lane].join(some, moves);
        bench::token_list all = lanes[lane].packed(), expected(400 - 4 - 32);
        std::sort(all.begin(), all.end());
        std::iota(expected.begin(), expected.end(), 4U);
        CHECK(all == expected);
    }
    const auto r = bench::replay_placement(log.events(), entries, 32, 4);
    CHECK(r.packed.joined > 4 * 180);
    CHECK(r.packed.joined <= 4 * 200);
    CHECK(r.packed.behind > r.packed.leaving);
    CHECK(r.packed.staying > 0);
    CHECK(r.packed.leaving > 0);
    CHECK(r.in_token_order.read_pages >= r.in_token_order.pages);
}

TEST_CASE("reuse of a log worked out by hand") {
    // 7 is written in step 0 and asked for in steps 0, 3 and 20; 8 is written in step 1 and never asked for.
    tiny_log log;
    log.step(0, {7}, {7}).step(1, {}, {8}).step(2, {}).step(3, {7});
    for (std::uint32_t s = 4; s < 40; ++s) s == 20 ? log.step(s, {7}) : log.step(s, {});
    log.step(40, {}, {7}); // no horizon behind it: does not count
    const auto rows = bench::measure_reuse(log.events);
    CHECK(rows[0].kind == "updated");
    CHECK(rows[0].cases == 2);
    CHECK(rows[0].again == std::array<std::uint64_t, 5>{0, 0, 1, 1, 1});
    CHECK(rows[0].probability(2) == 0.5);
    CHECK(rows[1].kind == "updated_only");
    CHECK(rows[1].cases == 1);
    CHECK(rows[1].again == std::array<std::uint64_t, 5>{0, 0, 0, 0, 0});
    CHECK(rows[2].kind == "asked"); // steps 3 and 20; from 3 to 20 are 17 steps
    CHECK(rows[2].cases == 2);
    CHECK(rows[2].again == std::array<std::uint64_t, 5>{0, 0, 0, 0, 0});
    CHECK(rows[3].kind == "resident"); // 7 in steps 0 to 24, 8 in steps 1 to 24
    CHECK(rows[3].cases == 49);
    CHECK(rows[3].again == std::array<std::uint64_t, 5>{2, 4, 3 + 4, 3 + 8, 3 + 16});

    log.events.push_back({decision::left, 0, 8, 1}); // too late to matter
    CHECK(bench::measure_reuse(log.events)[3].cases == 49);
    log.events.insert(log.events.begin() + 6, {decision::left, 0, 7, 1}); // within step 1: back in step 3
    CHECK(bench::measure_reuse(log.events)[3].cases == 47);
}

TEST_CASE("a replay worked out by hand") {
    tiny_log log;
    log.step(0, {0, 1}).step(1, {0, 2}).step(2, {1, 0}).step(3, {2}, {9}).step(4, {9, 0}).step(5, {3}, {1});
    const bench::access_sequence s(log.events);
    CHECK(s.units() == 5);
    CHECK(s.largest_call() == 2);
    CHECK(s.touched() == 5);
    // Two frames, LRU: {0 1}, {0 2}, 1 in place of 2, 2 in place of 1 (0 is younger in step 2: hits come
    // first, so 1 is the younger one and 0 leaves), then 9 for the older, 1; step 4 has 9 and reads 0.
    const auto r = bench::replay<kvtl::lru>(s, 2);
    CHECK(r.units == 10);
    CHECK(r.hit_units == 3); // 0 in steps 1 and 2, 9 in step 4
    CHECK(r.hit_frames == 3);
    CHECK(r.frames == 10);
    CHECK(r.hit_rate() == doctest::Approx(0.3));
    CHECK(r.regretted > 0);
    CHECK(bench::replay<kvtl::lru>(s, 5).hit_units == 6);  // all but the first time; 9 was made in memory
    CHECK(bench::replay<kvtl::fifo>(s, 5).hit_units == 6); // the same without any eviction
    CHECK(bench::belady(bench::as_accesses(s), 5).bound == 6);
}

TEST_CASE("no policy passes the bound, and nobody takes more than the frames") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        const auto s = random_sequence(seed);
        const auto accesses = bench::as_accesses(s);
        for (const std::uint32_t capacity : {15U, 20U, 30U, 45U}) {
            CAPTURE(seed);
            CAPTURE(capacity);
            REQUIRE(capacity >= s.largest_call());
            const auto bound = bench::belady(accesses, capacity);
            const auto check = [&]<class Policy>(Policy) {
                const auto r = bench::replay<Policy>(s, capacity);
                CHECK(r.frames == bound.accessed);
                CHECK(r.hit_frames <= bound.bound);
                CHECK(r.hit_frames > bound.bound / 4);
                CHECK(r.evictions > 0);
            };
            check(kvtl::lru{}), check(kvtl::fifo{}), check(kvtl::slru{}), check(kvtl::s3_fifo{}),
                check(kvtl::sieve{}), check(kvtl::cluster_aligned{});
            CHECK(bound.reached <= bound.bound);
            bench::replayed_cache<kvtl::cluster_aligned> cache({}, s, capacity);
            for (const auto& c : s.calls()) {
                cache.run(c, s);
                REQUIRE(cache.used() <= capacity);
            }
        }
    }
}

TEST_CASE("a policy compared with itself differs nowhere; lru and fifo do") {
    const auto s = random_sequence(1);
    const auto same = bench::compare<kvtl::lru, kvtl::lru>(s, 20);
    CHECK(same.only_first.units + same.only_second.units == 0);
    const auto other = bench::compare<kvtl::lru, kvtl::fifo>(s, 20);
    const auto a = bench::replay<kvtl::lru>(s, 20), b = bench::replay<kvtl::fifo>(s, 20);
    CHECK(other.only_first.units > 0);
    CHECK(other.only_first.units - other.only_second.units == a.hit_units - b.hit_units);
    CHECK(other.only_first.updated > 0);
    CHECK(other.only_first.updated < other.only_first.units);
}

TEST_CASE("pairs of a log worked out by hand") {
    // Lane 0: decode asks for 1 and 2 twice, for 1 and 3 once, and for 9, of which the prompt knows nothing.
    tiny_log prompt, decode;
    prompt.step(0, {1, 2, 3}).step(1, {2, 1});
    decode.step(0, {1, 2}, {3}).step(1, {2, 1, 9}).step(2, {3, 1}).step(3, {3});
    const auto r = bench::compare_pairs(prompt.events, decode.events);
    CHECK(r.lanes == 1);
    CHECK(r.pairs == 3); // (1, 2), (1, 3), (2, 3): 2, 1, 1 in the prompt and 2, 1, 0 in decode
    CHECK(r.rank_correlation == doctest::Approx(std::sqrt(3.0) / 2)); // ranks 2, .5, .5 and 2, 1, 0
    CHECK(r.concentration == doctest::Approx(2.0 / 3));               // a tenth of three pairs is one
    CHECK(r.foretold == doctest::Approx(2.0 / 3));
    // Asked for 3, 2 and 2 times; partners of the prompt are 2, 1 and 1, with 2, 2 and 1 times in decode.
    CHECK(r.partner_of_prompt == doctest::Approx(5.0 / 7));
    CHECK(r.partner_in_hindsight == doctest::Approx(5.0 / 7));
    CHECK(r.partner_by_chance == doctest::Approx((1.5 + 1 + .5) / 7));

    tiny_log other; // decode's pairs turned round: the prompt's favourite never comes
    other.step(0, {2, 3}).step(1, {2, 3}).step(2, {1, 3}).step(3, {1});
    const auto turned = bench::compare_pairs(prompt.events, other.events);
    CHECK(turned.rank_correlation < 0);
    CHECK(turned.foretold == 0);
    CHECK(turned.partner_of_prompt < turned.partner_in_hindsight);
    CHECK(bench::compare_pairs(prompt.events, {}).lanes == 0);
    CHECK(bench::compare_pairs({}, decode.events).rank_correlation == 0);
}

TEST_CASE("rows have every key, for each bound") {
    const scratch_folder folder;
    bench::decode_options o;
    o.shape = bench::find_shape("tiny-2k")->shape;
    o.context = 300, o.steps = 40;
    o.attend_tokens = {96}, o.memory_mib = {2, 4};
    o.io = "memory", o.kv_path = folder.file("run.kv");
    o.settings = {{"dynakv", "replacement", "updated_percent", "10"}};
    std::size_t announced = 0;
    const auto rows = bench::run_reuse(o, [&](const auto&) { ++announced; });
    REQUIRE(rows.size() == 2);
    CHECK(announced == 2);
    for (const auto& row : rows) {
        CHECK(row["policy"] == "dynakv");
        CHECK(row["config"]["replacement.updated_percent"] == "10");
        CHECK(row["horizons"].size() == 5);
        CHECK(row["reuse"].size() == 4);
        CHECK(row["touched_frames"] > 0);
        CHECK(row["replacement"].size() == 7 * 9); // six shares and the run's own frames
        CHECK(row["difference"].size() == 7 * 2);
        CHECK(row["together"]["lanes"] > 0);
        REQUIRE(row["placement"].size() == 3);
        CHECK(row["placement"][1]["read_bytes"] > row["placement"][0]["read_bytes"]);
        CHECK(row["placement"][2]["joined"] > 0);
        CHECK(row["together"]["foretold"] <= row["together"]["concentration"]);
        for (const auto& r : row["replacement"]) {
            CHECK(r["hit_rate"] >= 0);
            CHECK(r["hit_rate"] <= 1);
            CHECK(r.contains("evictions") == (r["policy"] != "belady" && r["policy"] != "bound"));
        }
        for (std::size_t i = 0; i < row["reuse"].size(); ++i)
            CHECK(row["reuse"][i]["probability"][0] <= row["reuse"][i]["probability"][4]);
    }
    CHECK(rows[0]["frames"] < rows[1]["frames"]);
    CHECK(rows[0]["touched_frames"] != 0);
    CHECK(std::filesystem::is_empty(folder.path()));

    o.memory_mib = {0.05};
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_reuse(o, ignore)), doctest::Contains("needs at least"),
                         engine::bad_input);
    o.memory_mib = {4}, o.settings = {{"dynakv", "replacement", "magic", "1"}};
    CHECK_THROWS_WITH_AS(static_cast<void>(bench::run_reuse(o, ignore)), doctest::Contains("no such field"),
                         engine::bad_input);
}
