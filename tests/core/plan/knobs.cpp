// The knobs that an error may name: each turned by one step and put into words, and the best of those tried.
// SPDX-License-Identifier: MIT
#include <kvtl/core/plan/knobs.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace core_plan_knobs_test {

using namespace kvtl;

namespace {

struct numbers {
    std::size_t max_tokens = 1000, max_sequences = 3, prefill_tokens = 0, keep_tokens = 0,
                attend_tokens = 300;
    std::uint32_t window_tokens = 32, sink_tokens = 4, open_pages = automatic;
    unsigned shards = 2;
    std::uint32_t buffer = 9;
    knob_numbers view() {
        knob_numbers n{max_tokens,    max_sequences, prefill_tokens, keep_tokens, attend_tokens,
                       window_tokens, sink_tokens,   open_pages,     shards};
        n.pending_entries = &buffer;
        n.planned_keep = 400;
        n.planned_tails = 12;
        n.chooses = true;
        return n;
    }
};

struct settings {
    std::uint32_t group_tokens = 16, same = 3;
    float share = 0.5F;
    template <class Visit> void fields(Visit&& visit) {
        visit("group_tokens", group_tokens), visit("same", same), visit("share", share);
    }
};
struct no_fields {};

} // namespace

TEST_CASE("a turn changes one number, and says which") {
    numbers c;
    const auto now = [](const numbers& of) {
        return std::vector<std::size_t>{of.max_tokens,    of.max_sequences, of.prefill_tokens, of.keep_tokens,
                                        of.attend_tokens, of.window_tokens, of.sink_tokens,    of.open_pages,
                                        of.shards,        of.buffer};
    };
    const std::vector<std::pair<std::string, std::size_t>> should = {
        {"max_tokens 500 instead of 1000", 500},
        {"max_sequences 1 instead of 3", 1},
        {"prefill_tokens 500 instead of 1000", 500}, // 0 stands for max_tokens
        {"keep_tokens 200 instead of 400", 200},     // as planned
        {"attend_tokens 150 instead of 300", 150},
        {"window_tokens 16 instead of 32", 16},
        {"sink_tokens 2 instead of 4", 2},
        {"open_pages 6 instead of 12", 6}, // as planned
        {"shards 1 instead of 2", 1},
        {"clusterer.pending_entries 4 instead of 9", 4}};
    for (std::size_t k = 0; k < should.size(); ++k) {
        numbers other = c;
        auto expected = now(c);
        expected[k] = should[k].second;
        CHECK(turn(static_cast<knob>(k), other.view()) == should[k].first);
        CHECK(now(other) == expected);
    }
    CHECK(turn(knob::size, c.view()).empty());
}

TEST_CASE("what cannot be turned, or counts for nothing, stays") {
    numbers c{.max_tokens = 1,
              .max_sequences = 1,
              .attend_tokens = 38, // sinks, window, what arrives and one more
              .window_tokens = 32,
              .sink_tokens = 4,
              .shards = 1,
              .buffer = 1};
    for (const knob k : {knob::max_tokens, knob::max_sequences, knob::prefill_tokens, knob::attend_tokens,
                         knob::window_tokens, knob::shards, knob::pending_entries}) {
        CAPTURE(static_cast<int>(k));
        CHECK(turn(k, c.view()).empty());
    }
    CHECK(c.attend_tokens == 38);
    c.max_tokens = 100;
    for (const std::uint32_t special : {whole_sequence, automatic}) {
        c.window_tokens = special;
        CHECK(turn(knob::window_tokens, c.view()).empty());
        CHECK(c.window_tokens == special);
    }
    c.window_tokens = 500; // a preset's own, cut to max_tokens
    CHECK(turn(knob::window_tokens, c.view()) == "window_tokens 50 instead of 100");
    auto keeps = c.view();
    keeps.planned_keep = 0, keeps.planned_tails = 0, keeps.pending_entries = nullptr, keeps.chooses = false;
    for (const knob k : {knob::prefill_tokens, knob::keep_tokens, knob::attend_tokens, knob::open_pages,
                         knob::pending_entries})
        CHECK(turn(k, keeps).empty());
}

TEST_CASE("listings tell what differs, with the slot's name") {
    settings before, after{.group_tokens = 32, .share = 0.25F};
    no_fields none;
    knob_listing a, b;
    a.add("clusterer", before), a.add("index", none), b.add("clusterer", after), b.add("index", none);
    CHECK(b.instead_of(a) ==
          "clusterer.group_tokens 32 instead of 16 with clusterer.share 0.25 instead of 0.5");
    CHECK(a.instead_of(a).empty());
}

TEST_CASE("the best is the smallest; what serves less stands beside the best that serves as much") {
    best_knobs best(1000, 1000);
    CHECK(best.text() == "no knob alone makes it smaller");
    best.tried(knob::shards, "shards 1 instead of 2", 1000); // no help
    best.tried(knob::open_pages, "open_pages 1 instead of 2", 1200);
    CHECK(best.text() == "no knob alone makes it smaller");
    best.tried(knob::max_tokens, "max_tokens 5 instead of 10", 900);
    CHECK(best.text() == "what would help most: max_tokens 5 instead of 10 (needs 900 bytes, 0.00 MiB)");
    best.tried(knob::window_tokens, "window_tokens 1 instead of 2", 950);
    best.tried(knob::sink_tokens, "sink_tokens 1 instead of 2", 960);
    CHECK(best.text() == "what would help most: max_tokens 5 instead of 10 (needs 900 bytes, 0.00 MiB); to "
                         "serve as much: window_tokens 1 instead of 2 (needs 950 bytes, 0.00 MiB)");
    best.tried(knob::size, "index.bits 4 instead of 5", 800);
    CHECK(best.text() == "what would help most: index.bits 4 instead of 5 (needs 800 bytes, 0.00 MiB)");
}

TEST_CASE("a suggestion that is not enough says so") {
    best_knobs best(1000, 850);
    best.tried(knob::max_tokens, "max_tokens 5 instead of 10", 850);
    best.tried(knob::window_tokens, "window_tokens 1 instead of 2", 851);
    CHECK(best.text() ==
          "what would help most: max_tokens 5 instead of 10 (needs 850 bytes, 0.00 MiB); to "
          "serve as much: window_tokens 1 instead of 2 (needs 851 bytes, 0.00 MiB: not enough)");
    CHECK(all_turns_of("max_tokens 5 instead of 10", "max_tokens 2 instead of 5") ==
          "max_tokens 2 instead of 10");
}

} // namespace core_plan_knobs_test
