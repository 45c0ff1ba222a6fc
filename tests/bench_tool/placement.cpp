// The replayed placements of `kvtl-bench reuse` beside a lane that is laid out anew after every change.
// SPDX-License-Identifier: MIT
#include "placement.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

using bench::decision;
using bench::decision_event;
using bench::entry_event;
using bench::token_list;

namespace placement_test {

/// Units in the order in which they are packed, each with its number and its entries.
struct naive_lane {
    std::vector<std::pair<std::uint32_t, token_list>> units;
    std::uint32_t tokens = 0;

    [[nodiscard]] token_list stream() const {
        token_list all;
        for (const auto& u : units) all.insert(all.end(), u.second.begin(), u.second.end());
        return all;
    }
};

/// How many of `entries` lie elsewhere than before.
std::uint64_t moved(const token_list& entries, const token_list& before, const token_list& after) {
    std::uint64_t n = 0;
    for (const std::uint32_t t : entries) {
        const auto was = std::find(before.begin(), before.end(), t);
        if (was == before.end()) continue;
        n += was - before.begin() != std::find(after.begin(), after.end(), t) - after.begin() ? 1 : 0;
    }
    return n;
}

/// Events and counts of two random lanes, up to three changes of one of them a call.
struct random_run {
    static constexpr std::uint32_t page_rows = 4, gap_pages = 2;
    std::mt19937 random;
    bench::entry_log log;
    std::vector<decision_event> decisions;
    std::array<naive_lane, 2> lane;
    bench::packed_moves moves;
    bench::token_order_reads reads;
    std::uint32_t splits = 0, just_split = kvtl::none;

    explicit random_run(unsigned seed) : random(seed) {
        for (std::uint32_t l = 0; l < 2; ++l)
            for (std::uint32_t u = 0; u < 5; ++u) {
                lane[l].units.push_back({u, {}});
                for (std::uint32_t n = below(9) + 1; n > 0; --n) lane[l].units.back().second.push_back(0);
            }
        for (std::uint32_t l = 0; l < 2; ++l) { // tokens of a prompt lie anywhere
            token_list all(lane[l].stream().size());
            for (std::uint32_t& t : all) t = lane[l].tokens++;
            std::shuffle(all.begin(), all.end(), random);
            for (auto& [number, entries] : lane[l].units) {
                for (std::uint32_t& t : entries) t = all.back(), all.pop_back();
                build(l, number, entries);
            }
        }
        for (std::uint32_t step = 0; step < 300; ++step) call(step);
    }

    std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); }
    void build(std::uint32_t l, std::uint32_t number, const token_list& entries) {
        for (std::uint32_t i = 0; i < entries.size(); ++i) log.add({l, number, i, entries[i]});
    }

    void call(std::uint32_t step) {
        const std::uint32_t l = step % 2;
        decisions.push_back({decision::call, 0, step, 0});
        log.begin_call();
        std::set<std::uint32_t> missing;
        for (std::uint32_t n = below(4); n > 0; --n)
            missing.insert(below(static_cast<std::uint32_t>(lane[l].units.size())));
        for (const std::uint32_t u : missing) decisions.push_back({decision::miss, l, u, 1});
        decisions.push_back({decision::hit, l, 0, 1});
        count_reads(lane[l], missing);
        just_split = kvtl::none;
        for (std::uint32_t n = 0, changes = 1 + below(3); n < changes; ++n) change(l, n == 0);
    }

    /// Page by page, whether it is wanted.
    void count_reads(const naive_lane& of, const std::set<std::uint32_t>& missing) {
        std::vector<bool> wanted(of.tokens / page_rows + 1, false);
        for (const auto& [number, entries] : of.units) {
            if (missing.count(number) == 0) continue;
            ++reads.units, reads.entries += entries.size();
            for (const std::uint32_t t : entries) wanted[t / page_rows] = true;
        }
        wanted[of.tokens / page_rows] = false; // unfinished
        std::uint32_t gap = gap_pages + 1;     // pages since the last one that was wanted
        for (std::size_t p = 0; p < wanted.size(); ++p) {
            if (!wanted[p]) {
                ++gap;
                continue;
            }
            ++reads.pages, ++reads.read_pages;
            if (gap > gap_pages)
                ++reads.reads;
            else
                reads.read_pages += gap;
            gap = 0;
        }
    }

    /// A unit of its own only begins a call: behind the rewriting of another unit it would be that unit's child.
    void change(std::uint32_t l, bool may_open) {
        naive_lane& of = lane[l];
        const token_list before = of.stream();
        const std::uint32_t token = of.tokens++;
        std::uint32_t at = below(static_cast<std::uint32_t>(of.units.size()));
        if (of.units[at].first == just_split)
            at = 0; // what joins it now would seem to have come with the split
        just_split = kvtl::none;
        const auto next = static_cast<std::uint32_t>(of.units.size());
        ++moves.joined;
        if (may_open && below(6) == 0) { // a unit of its own
            of.units.push_back({next, {token}});
            return build(l, next, {token});
        }
        auto& [number, entries] = of.units[at];
        if (entries.size() < 10) {
            if (below(3) == 0) build(l, number, entries); // its sums begin anew
            log.add({l, number, static_cast<std::uint32_t>(entries.size()), token});
            entries.push_back(token);
            moves.behind += moved(before, before, of.stream());
            return;
        }
        ++splits;
        entries.push_back(token);
        token_list stays, leaves;
        for (const std::uint32_t t : entries) (below(2) == 0 ? stays : leaves).push_back(t);
        if (stays.empty()) stays.push_back(leaves.back()), leaves.pop_back();
        if (leaves.empty()) leaves.push_back(stays.back()), stays.pop_back();
        build(l, number, stays), build(l, next, leaves);
        just_split = next;
        entries = stays;
        of.units.insert(of.units.begin() + at + 1, {next, leaves});
        const token_list after = of.stream();
        const std::uint64_t staying = moved(stays, before, after), leaving = moved(leaves, before, after);
        moves.staying += staying, moves.leaving += leaving;
        moves.behind += moved(before, before, after) - staying - leaving;
    }
};

} // namespace placement_test

using namespace placement_test;

TEST_CASE("replayed placements are those of a lane laid out anew") {
    for (unsigned seed = 1; seed <= 10; ++seed) {
        CAPTURE(seed);
        const random_run run(seed);
        const auto r =
            bench::replay_placement(run.decisions, run.log, random_run::page_rows, random_run::gap_pages);
        REQUIRE(run.splits > 5);
        CHECK(r.packed.joined == run.moves.joined);
        CHECK(r.packed.behind == run.moves.behind);
        CHECK(r.packed.staying == run.moves.staying);
        CHECK(r.packed.leaving == run.moves.leaving);
        CHECK(r.in_token_order.units == run.reads.units);
        CHECK(r.in_token_order.entries == run.reads.entries);
        CHECK(r.in_token_order.pages == run.reads.pages);
        CHECK(r.in_token_order.reads == run.reads.reads);
        CHECK(r.in_token_order.read_pages == run.reads.read_pages);
        CHECK(r.in_token_order.read_pages > r.in_token_order.pages);
        CHECK(r.in_token_order.pages > r.in_token_order.reads);
    }
}

TEST_CASE("one lane worked out by hand") {
    // A page has two entries: 0 1 | 2 3 | 4 5 | 6 7 | 8 -
    const std::vector<entry_event> prompt = {{0, 0, 0, 0}, {0, 0, 1, 5}, {0, 1, 0, 1}, {0, 1, 1, 2},
                                             {0, 1, 2, 4}, {0, 2, 0, 3}, {0, 2, 1, 6}};
    bench::placed_lane lane;
    bench::packed_moves moves;
    lane.join(prompt, moves);
    CHECK(lane.packed() == token_list{0, 5, 1, 2, 4, 3, 6});

    lane.join(std::vector<entry_event>{{0, 0, 2, 7}}, moves); // five entries lie behind unit 0
    CHECK(lane.packed() == token_list{0, 5, 7, 1, 2, 4, 3, 6});
    CHECK(moves.joined == 8);
    CHECK(moves.behind == 5);

    // 2 and the new 8 leave unit 1: 4 takes the place of 2, and two entries lie behind.
    lane.join(std::vector<entry_event>{{0, 1, 0, 1}, {0, 1, 1, 4}, {0, 3, 0, 2}, {0, 3, 1, 8}}, moves);
    CHECK(lane.packed() == token_list{0, 5, 7, 1, 4, 2, 8, 3, 6});
    CHECK(moves.behind == 7);
    CHECK(moves.staying == 1);
    CHECK(moves.leaving == 1);

    bench::token_order_reads reads;
    lane.read(std::vector<std::uint32_t>{0, 3}, 2, 0, reads); // pages 0, 2, 3 and 1, and 8 is in memory
    CHECK(reads.pages == 4);
    CHECK(reads.reads == 1);
    CHECK(reads.entries == 5);
    lane.read(std::vector<std::uint32_t>{1}, 2, 0, reads); // pages 0 and 2
    CHECK(reads.reads == 3);
    lane.read(std::vector<std::uint32_t>{1}, 2, 1, reads); // through page 1
    CHECK(reads.reads == 4);
    CHECK(reads.pages == 8);
    CHECK(reads.read_pages == 9);
}

TEST_CASE("a lane that is clustered late is packed anew and moves nothing") {
    bench::placed_lane lane;
    bench::packed_moves moves;
    lane.join(std::vector<entry_event>{{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 2}, {0, 2, 0, 3}}, moves);
    lane.join(std::vector<entry_event>{{0, 0, 0, 0}, {0, 0, 1, 2}, {0, 1, 0, 1}, {0, 1, 1, 3}}, moves);
    CHECK(lane.packed() == token_list{0, 2, 1, 3});
    CHECK(moves.behind + moves.staying + moves.leaving == 0);
}

TEST_CASE("tokens are marked on values") {
    std::vector<float> v(3 * 2 * 4, 7.0F);
    bench::mark_tokens(v, 4095, 2, 4);
    for (std::size_t row = 0; row < 6; ++row) {
        CHECK(bench::marked_token(&v[row * 4]) == 4095 + row / 2);
        CHECK(v[row * 4 + 2] == 7.0F);
    }
}
