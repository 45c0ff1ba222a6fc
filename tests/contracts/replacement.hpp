// What every replacement policy promises, and the loop that compares one with a naive model of its own rule.
//
//   replacement_contract<lru>({}, [](std::uint32_t handles, std::uint32_t pages) { return lru_model(...); });
//
// The model has the same calls as the policy's state and may be as slow as it likes.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/replacement.hpp>

#include "support/guarded_bytes.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

namespace replacement_suite {

template <class P> using state_of = typename P::state;

constexpr auto nothing_pinned = [](std::uint32_t) { return false; };

template <class P> void empty_has_no_victim(const typename P::config& config) {
    guarded_bytes memory(state_of<P>::bytes(8, 4));
    state_of<P> s(config, 8, 4, memory.memory());
    CHECK(s.victim(nothing_pinned) == none);
    s.admit(5, {.pages = 3, .updated = true});
    CHECK(s.victim(nothing_pinned) == 5);
    CHECK(s.victim([](std::uint32_t h) { return h == 5; }) == none);
    s.remove(5);
    CHECK(s.victim(nothing_pinned) == none);
    CHECK(memory.intact());
}

/// The blocks of unequal pools take no more than those of as many equal ones and 16 bytes for each.
template <class P> void bytes_are_no_curve() {
    const auto bytes = [](std::uint32_t handles) { return (state_of<P>::bytes(handles, 5) + 7) / 8 * 8; };
    for (const std::uint32_t mean : {1U, 2U, 7U, 64U, 255U, 1000U, 4097U})
        for (const std::uint32_t less : {mean, mean / 2, mean / 3, 1U}) {
            CAPTURE(mean);
            CAPTURE(less);
            CHECK(bytes(mean - less) + bytes(mean + less) <= 2 * (bytes(mean) + 16));
        }
}

/// All that was admitted and not removed leaves, once each, whatever happened before.
template <class P> void everyone_leaves_once(const typename P::config& config) {
    constexpr std::uint32_t handles = 60, unit_pages = 5;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        guarded_bytes memory(state_of<P>::bytes(handles, unit_pages));
        state_of<P> s(config, handles, unit_pages, memory.memory());
        oracle::generator random(seed);
        std::set<std::uint32_t> resident;
        for (int i = 0; i < 400; ++i) {
            const auto h = static_cast<std::uint32_t>(random.below(handles));
            const resident_facts facts{1 + static_cast<std::uint32_t>(random.below(unit_pages)),
                                       random.below(3) == 0};
            if (!resident.contains(h)) {
                s.admit(h, facts);
                resident.insert(h);
            } else if (random.below(3) == 0) {
                s.remove(h);
                resident.erase(h);
            } else if (random.below(2) == 0) {
                s.refresh(h, facts);
            } else {
                s.touch(h);
            }
            if (random.below(10) == 0) s.tick();
            if constexpr (requires { s.resize(handles); }) // the pool has borrowed frames, or given some back
                if (random.below(10) == 0) s.resize(static_cast<std::uint32_t>(random.below(handles + 1)));
        }
        while (!resident.empty()) {
            const std::uint32_t h = s.victim(nothing_pinned);
            REQUIRE(h != none);
            REQUIRE(resident.erase(h) == 1);
            s.remove(h);
        }
        CHECK(s.victim(nothing_pinned) == none);
        CHECK(memory.intact());
    }
}

enum class trace { random, loop, scan };

/// Runs a cache of `capacity` pages over a trace and compares every victim with the model's.
template <class P, class Model>
void equals_model(const typename P::config& config, Model model, trace kind, std::uint64_t seed,
                  std::uint32_t handles, std::uint32_t unit_pages) {
    guarded_bytes memory(state_of<P>::bytes(handles, unit_pages));
    state_of<P> s(config, handles, unit_pages, memory.memory());
    oracle::generator random(seed);
    const std::uint32_t capacity = handles * 2 / 3;
    std::vector<std::uint32_t> pages(handles, 0); // 0: not resident
    std::uint32_t used = 0, compared = 0;
    for (std::uint32_t i = 0; i < 3000; ++i) {
        std::uint32_t h = 0;
        if (kind == trace::random) h = static_cast<std::uint32_t>(random.below(handles));
        if (kind == trace::loop) h = i % (handles * 3 / 4);
        if (kind == trace::scan) // half of the accesses go to few handles, the rest sweeps through all
            h = i % 2 == 0 ? static_cast<std::uint32_t>(random.below(5)) : i / 2 % handles;
        const resident_facts facts{1 + static_cast<std::uint32_t>(random.below(unit_pages)),
                                   random.below(5) == 0};
        if (i % 4 == 0) {
            s.tick();
            model.tick();
        }
        if (pages[h] != 0) {
            if (facts.updated) {
                used += facts.pages - pages[h];
                pages[h] = facts.pages;
                s.refresh(h, facts);
                model.refresh(h, facts);
            } else {
                s.touch(h);
                model.touch(h);
            }
        } else {
            used += facts.pages;
            pages[h] = facts.pages;
            s.admit(h, facts);
            model.admit(h, facts);
        }
        const std::uint64_t pins = random.bits();
        const auto pinned = [&](std::uint32_t x) { return x == h || (pins >> (x % 64) & 7U) == 0; };
        for (bool more = true; more && used > capacity;) {
            const std::uint32_t victim = s.victim(pinned);
            REQUIRE(victim == model.victim(pinned));
            ++compared;
            more = victim != none;
            if (!more) break;
            REQUIRE(!pinned(victim));
            REQUIRE(pages[victim] != 0);
            used -= pages[victim];
            pages[victim] = 0;
            s.remove(victim);
            model.remove(victim);
        }
    }
    CHECK(compared > 100);
    CHECK(memory.intact());
}

/// A state whose block moves between calls names the victims of one whose block stays where it is.
template <class P> void survives_a_move(const typename P::config& config, std::uint64_t seed) {
    constexpr std::uint32_t handles = 48, unit_pages = 4, lanes = 5;
    guarded_bytes stays(state_of<P>::bytes(handles, unit_pages)),
        moves(state_of<P>::bytes(handles, unit_pages));
    state_of<P> still(config, handles, unit_pages, stays.memory()),
        moving(config, handles, unit_pages, moves.memory());
    const auto both = [&](const auto& call) { call(still), call(moving); };
    oracle::generator random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random.below(n)); };
    std::vector<std::uint32_t> pages(handles, 0); // 0: not resident
    std::uint32_t used = 0, frames = handles, compared = 0, moves_done = 0;
    const auto move = [&] {
        CHECK(moves.intact());
        moves = moved(std::move(moves));
        moving = state_of<P>(config, handles, unit_pages, moves.memory(), state_block::filled);
        ++moves_done;
    };
    for (std::uint32_t i = 0; i < 4000; ++i) {
        const std::uint32_t h = below(handles), lane = below(lanes);
        const resident_facts facts{1 + below(unit_pages), below(5) == 0, lane, below(40)};
        if (below(4) == 0) both([](auto& s) { s.tick(); });
        if constexpr (requires { still.resize(frames); })
            if (below(50) == 0) {
                frames = handles / 2 + below(handles / 2 + 1);
                both([&](auto& s) { s.resize(frames); });
            }
        if constexpr (requires { still.serve(lane); }) both([&](auto& s) { s.serve(lane); });
        if (pages[h] == 0) {
            both([&](auto& s) { s.admit(h, facts); });
            used += pages[h] = facts.pages;
        } else if (below(8) == 0) {
            both([&](auto& s) { s.remove(h); });
            used -= std::exchange(pages[h], 0U);
        } else if (facts.updated) {
            both([&](auto& s) { s.refresh(h, facts); });
            used += facts.pages - std::exchange(pages[h], facts.pages);
        } else {
            both([&](auto& s) { s.touch(h); });
        }
        if (below(30) == 0) move();
        const std::uint64_t pins = random.bits();
        const auto pinned = [&](std::uint32_t x) { return x == h || (pins >> (x % 64) & 7U) == 0; };
        while (used > frames * 2 / 3) {
            const std::uint32_t victim = still.victim(pinned);
            REQUIRE(moving.victim(pinned) == victim);
            if (victim == none) break;
            ++compared;
            if (below(30) == 0) move(); // a victim was named and is still there
            both([&](auto& s) { s.remove(victim); });
            used -= std::exchange(pages[victim], 0U);
        }
    }
    CHECK(compared > 300);
    CHECK(moves_done > 100);
    CHECK(stays.intact());
}

} // namespace replacement_suite

template <class P, class MakeModel>
void replacement_contract(const typename P::config& config, const MakeModel& make_model) {
    static_assert(replacement_for<P>);
    SUBCASE("an empty policy has no victim") {
        replacement_suite::empty_has_no_victim<P>(config);
        replacement_suite::bytes_are_no_curve<P>();
    }
    SUBCASE("everyone leaves exactly once") {
        replacement_suite::everyone_leaves_once<P>(config);
    }
    SUBCASE("a state survives a move of its block") {
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            CAPTURE(seed);
            replacement_suite::survives_a_move<P>(config, seed);
        }
    }
    SUBCASE("equals its model") {
        using replacement_suite::trace;
        for (const trace kind : {trace::random, trace::loop, trace::scan})
            for (std::uint64_t seed = 1; seed <= 5; ++seed)
                for (const std::uint32_t unit_pages : {1U, 4U}) {
                    CAPTURE(static_cast<int>(kind));
                    CAPTURE(seed);
                    CAPTURE(unit_pages);
                    replacement_suite::equals_model<P>(config, make_model(48U, unit_pages), kind, seed, 48,
                                                       unit_pages);
                }
    }
}

} // namespace kvtl_test
