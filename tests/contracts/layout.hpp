// What every layout promises, checked against a table of who owns which page. Entry-wise layouts only hand
// out runs; page-wise ones also place units.
//
//   layout_contract<dual_head>();
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/layout.hpp>

#include "contracts/replacement.hpp" // guarded_bytes
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace kvtl_test {

using namespace kvtl;

/// A layout's state with its memory.
template <class P> class layout_under_test {
  public:
    using state = typename P::state;

    explicit layout_under_test(const layout_limits& limits, const typename P::config& config = {})
        : limits_(limits), config_(config), memory_(state::bytes(limits)),
          state_(config, limits, memory_.memory()) {}
    state* operator->() { return &state_; }
    [[nodiscard]] const layout_limits& limits() const { return limits_; }
    [[nodiscard]] bool intact() const { return memory_.intact(); }
    /// A state of its own goes on in a copy of the block; the block it leaves is overwritten.
    void move() {
        memory_ = moved(std::move(memory_));
        state_ = state(config_, limits_, memory_.memory(), state_block::filled);
    }

  private:
    layout_limits limits_;
    typename P::config config_;
    guarded_bytes memory_;
    state state_;
};

/// The pages of a file and who owns them: a page is claimed once, and given back by its owner.
class page_owners {
  public:
    explicit page_owners(std::uint32_t pages) : owner_(pages, none) {}
    /// False when the page is outside the file or has an owner.
    [[nodiscard]] bool claim(std::uint32_t page, std::uint32_t who) {
        if (page >= owner_.size() || owner_[page] != none) return false;
        owner_[page] = who;
        ++owned_;
        return true;
    }
    void give_back(std::uint32_t who) {
        for (std::uint32_t& o : owner_)
            if (o == who) {
                o = none;
                --owned_;
            }
    }
    [[nodiscard]] std::uint32_t owned() const { return owned_; }
    /// One past the highest page that has an owner: as far as the file must reach.
    [[nodiscard]] std::uint32_t highest() const {
        auto end = static_cast<std::uint32_t>(owner_.size());
        while (end > 0 && owner_[end - 1] == none) --end;
        return end;
    }

  private:
    std::vector<std::uint32_t> owner_;
    std::uint32_t owned_ = 0;
};

[[nodiscard]] constexpr layout_limits limits_of(std::uint32_t file_pages, std::uint32_t unit_pages) {
    return {.file_pages = file_pages, .unit_pages = unit_pages};
}

namespace layout_suite {

template <class P>
[[nodiscard]] bool claim_run(layout_under_test<P>& l, page_owners& owners, std::uint32_t who,
                             std::uint32_t first) {
    bool fine = true;
    for (std::uint32_t i = 0; i < l->run_pages(); ++i) fine = owners.claim(first + i, who) && fine;
    return fine;
}

/// Claims every page that the unit could ever have there, so that growing in place is safe too.
template <class P>
[[nodiscard]] bool claim_unit(layout_under_test<P>& l, page_owners& owners, std::uint32_t who, place where,
                              std::uint32_t pages) {
    bool fine = l->capacity(where) >= pages;
    for (std::uint32_t i = 0; i < l->capacity(where); ++i)
        fine = owners.claim(l->page(where, i), who) && fine;
    return fine;
}

/// How many units of `pages` the layout takes until it refuses; all are given back.
template <class P> [[nodiscard]] std::uint32_t room_for_units(layout_under_test<P>& l, std::uint32_t pages) {
    std::vector<place> all;
    for (place where; l->place_unit(pages, where);) all.push_back(where);
    for (const place& where : all) l->release(where);
    return static_cast<std::uint32_t>(all.size());
}

template <class P> void runs(std::uint64_t seed) {
    layout_under_test<P> l(limits_of(203, 3));
    page_owners owners(203);
    oracle::generator random(seed);
    std::vector<std::uint32_t> held;
    REQUIRE(l->run_pages() > 0);
    CHECK(l->used() == 0);
    CHECK(l->top() == 0);
    const auto give_back = [&](std::size_t i) {
        l->release_run(held[i]);
        owners.give_back(held[i]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    std::size_t most = 0;
    for (int step = 0; step < 600; ++step) {
        if (held.empty() || random.below(5) < 3) {
            const std::uint32_t first = l->allocate_run();
            if (first == none) {
                most = std::max(most, held.size());
                give_back(random.below(held.size()));
                continue;
            }
            REQUIRE(claim_run(l, owners, first, first));
            held.push_back(first);
        } else {
            give_back(random.below(held.size()));
        }
        CHECK(l->used() == owners.owned());
        CHECK(l->top() == owners.highest());
    }
    CHECK(most == 203 / l->run_pages()); // refused only when not one more run fits
    while (!held.empty()) give_back(held.size() - 1);
    CHECK(l->used() == 0);
    CHECK(l.intact());
}

/// Units and runs come and go; a unit that has to grow beyond its place moves.
template <class P> void random_life(std::uint64_t seed, const typename P::config& config) {
    constexpr std::uint32_t unit_pages = 3;
    layout_under_test<P> l(limits_of(150, unit_pages), config);
    page_owners owners(150);
    const std::uint32_t fresh_room = room_for_units(l, 1);
    REQUIRE(l->used() == 0);
    oracle::generator random(seed);
    struct holder {
        std::uint32_t id;
        bool run;
        place where;
        std::uint32_t pages, capacity;
    };
    std::vector<holder> held;
    const auto give_back = [&](std::size_t i) {
        if (held[i].run) {
            l->release_run(held[i].where.first);
        } else {
            CHECK(l->capacity(held[i].where) == held[i].capacity);
            l->release(held[i].where);
        }
        owners.give_back(held[i].id);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (std::uint32_t id = 0; id < 900; ++id) {
        const std::size_t what = random.below(10);
        if (what < 4) {
            const auto pages = 1 + static_cast<std::uint32_t>(random.below(unit_pages));
            place where;
            if (!l->place_unit(pages, where)) continue;
            REQUIRE(claim_unit(l, owners, id, where, pages));
            held.push_back({id, false, where, pages, l->capacity(where)});
        } else if (what == 4) {
            const std::uint32_t first = l->allocate_run();
            if (first == none) continue;
            REQUIRE(claim_run(l, owners, id, first));
            held.push_back({id, true, {first, 0}, 0, 0});
        } else if (what < 7 && !held.empty()) { // grow: in place or by moving
            holder& h = held[random.below(held.size())];
            if (h.run || h.pages == unit_pages) continue;
            if (l->capacity(h.where) <= h.pages) {
                place where;
                if (!l->place_unit(h.pages + 1, where)) continue;
                REQUIRE(claim_unit(l, owners, id, where, h.pages + 1));
                l->release(h.where);
                owners.give_back(h.id);
                h.id = id;
                h.where = where;
                h.capacity = l->capacity(where);
            }
            ++h.pages;
        } else if (!held.empty()) {
            give_back(random.below(held.size()));
        }
        REQUIRE(l->used() >= owners.owned());
        REQUIRE(l->used() <= 150);
        CHECK(l->top() >= owners.highest());
        CHECK(l->top() <= 150);
    }
    while (!held.empty()) give_back(random.below(held.size()));
    CHECK(l->used() == 0);
    CHECK(room_for_units(l, 1) == fresh_room); // longer ones depend on where the search begins
    CHECK(l.intact());
}

/// A prompt's units with random chains. rows_per_page is 4.
struct prompt {
    std::vector<unit_record> unit;
    std::vector<std::uint32_t> order, strength;

    prompt(oracle::generator& random, std::uint32_t units, std::uint32_t largest_pages) {
        for (std::uint32_t u = 0; u < units; ++u) {
            unit.emplace_back();
            unit.back().entries = 1 + static_cast<std::uint32_t>(random.below(4 * largest_pages));
            order.push_back(u);
            strength.push_back(random.below(3) == 0 ? 0 : 1 + static_cast<std::uint32_t>(random.below(9)));
        }
        for (std::uint32_t u = units; u > 1; --u) std::swap(order[u - 1], order[random.below(u)]);
        if (units > 0) strength.back() = 0;
    }
    [[nodiscard]] arrangement view() { return {order, strength, unit, 4}; }
};

template <class P> void arrange_all_or_nothing(std::uint64_t seed, const typename P::config& config) {
    oracle::generator random(seed);
    std::uint32_t refused = 0, placed = 0;
    for (int round = 0; round < 60; ++round) {
        layout_under_test<P> l(limits_of(96, 3), config);
        page_owners owners(96);
        const std::uint32_t already = static_cast<std::uint32_t>(random.below(20));
        for (std::uint32_t i = 0; i < already; ++i) { // a file that is in use, with gaps
            place where;
            REQUIRE(l->place_unit(1, where));
            if (random.below(3) == 0)
                l->release(where);
            else
                REQUIRE(claim_unit(l, owners, 1000 + i, where, 1));
        }
        const std::uint32_t used = l->used(), room = room_for_units(l, 1);
        prompt p(random, static_cast<std::uint32_t>(random.below(50)), 3);
        if (!l->arrange(p.view())) {
            ++refused;
            CHECK(l->used() == used);
            CHECK(room_for_units(l, 1) == room);
            for (const unit_record& u : p.unit) // whoever cleans up releases what has a place
                CHECK(u.where.first == none);
            continue;
        }
        ++placed;
        for (std::uint32_t u = 0; u < p.unit.size(); ++u)
            REQUIRE(claim_unit(l, owners, u, p.unit[u].where, (p.unit[u].entries + 3) / 4));
        for (const unit_record& u : p.unit) l->release(u.where);
        CHECK(l->used() == used);
        CHECK(l.intact());
    }
    CHECK(refused > 0);
    CHECK(placed > 0);
}

/// Where there is a place for every unit by itself, the order of a prompt may not make it fail.
template <class P> void arrange_uses_what_there_is(std::uint64_t seed, const typename P::config& config) {
    oracle::generator random(seed);
    for (int round = 0; round < 40; ++round) {
        layout_under_test<P> l(limits_of(40, 1), config);
        std::vector<place> others;
        for (place where; l->place_unit(1, where);) others.push_back(where);
        std::uint32_t free = 0;
        for (const place& where : others)
            if (random.below(2) == 0) {
                l->release(where);
                ++free;
            }
        prompt p(random, free, 1);
        CHECK(l->arrange(p.view()));
    }
}

[[nodiscard]] inline bool same_place(place a, place b) {
    return a.first == b.first && a.extra == b.extra;
}

/// A state whose block moves between calls gives the answers of one whose block stays where it is.
template <class P> void survives_a_move(std::uint64_t seed, const typename P::config& config) {
    constexpr std::uint32_t unit_pages = 3;
    const layout_limits limits{.file_pages = 150, .unit_pages = unit_pages};
    layout_under_test<P> still(limits, config), moving(limits, config);
    oracle::generator random(seed);
    std::vector<std::uint32_t> runs;
    std::vector<place> units;
    std::uint32_t moves = 0, refused = 0;
    const auto take_any = [&](auto& held) {
        const std::size_t i = random.below(held.size());
        const auto one = held[i];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        return one;
    };
    for (int step = 0; step < 1500; ++step) {
        const bool filling = step / 100 % 2 == 0; // the file fills up and empties again
        const std::size_t what = random.below(filling ? 6 : 12);
        if (what < 2) {
            const std::uint32_t first = still->allocate_run();
            REQUIRE(moving->allocate_run() == first);
            first == none ? void(++refused) : runs.push_back(first);
        } else if (what >= 6 && !runs.empty()) {
            const std::uint32_t first = take_any(runs);
            still->release_run(first);
            moving->release_run(first);
        }
        if constexpr (!P::by_entry) {
            if (what == 2) {
                prompt a(random, static_cast<std::uint32_t>(random.below(9)), unit_pages), b = a;
                const bool placed = still->arrange(a.view());
                REQUIRE(moving->arrange(b.view()) == placed);
                for (std::size_t u = 0; u < a.unit.size(); ++u) {
                    REQUIRE(same_place(a.unit[u].where, b.unit[u].where));
                    if (placed) units.push_back(a.unit[u].where);
                }
                refused += placed ? 0 : 1;
            } else if (what < 6) {
                const auto pages = 1 + static_cast<std::uint32_t>(random.below(unit_pages));
                place where, other;
                const bool placed = still->place_unit(pages, where);
                REQUIRE(moving->place_unit(pages, other) == placed);
                REQUIRE(same_place(where, other));
                placed ? units.push_back(where) : void(++refused);
            } else if (!units.empty()) {
                const place where = take_any(units);
                still->release(where);
                moving->release(where);
            }
        }
        REQUIRE(moving->used() == still->used());
        REQUIRE(moving->top() == still->top());
        if (random.below(20) != 0) continue;
        CHECK(moving.intact());
        moving.move();
        ++moves;
    }
    CHECK(moves > 30);
    CHECK(refused > 10);
}

} // namespace layout_suite

template <class P> void layout_contract(const typename P::config& config = {}) {
    static_assert(layout_for<P>);
    SUBCASE("runs") {
        for (std::uint64_t seed = 1; seed <= 3; ++seed) layout_suite::runs<P>(seed);
    }
    SUBCASE("a state survives a move of its block") {
        for (std::uint64_t seed = 1; seed <= 5; ++seed) layout_suite::survives_a_move<P>(seed, config);
    }
    if constexpr (!P::by_entry) {
        SUBCASE("units and runs never share a page") {
            for (std::uint64_t seed = 1; seed <= 5; ++seed) layout_suite::random_life<P>(seed, config);
        }
        SUBCASE("a prompt is placed whole or not at all") {
            for (std::uint64_t seed = 1; seed <= 3; ++seed)
                layout_suite::arrange_all_or_nothing<P>(seed, config);
        }
        SUBCASE("a prompt uses the room there is") {
            for (std::uint64_t seed = 1; seed <= 3; ++seed)
                layout_suite::arrange_uses_what_there_is<P>(seed, config);
        }
    }
}

} // namespace kvtl_test
