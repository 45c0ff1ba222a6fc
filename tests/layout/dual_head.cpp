// dual_head: where the two heads of a pool lie, and which units become neighbours.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/dual_head.hpp>

#include "contracts/layout.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace layout_dual_head_test {

using namespace kvtl;
using kvtl_test::layout_under_test;

namespace {

constexpr std::uint32_t unit_pages = 4;
constexpr layout_limits limits = kvtl_test::limits_of(80, unit_pages); // ten pools

struct chain {
    std::vector<unit_record> unit;
    std::vector<std::uint32_t> order, strength;

    explicit chain(std::vector<std::uint32_t> links)
        : unit(links.size() + 1), order(links.size() + 1), strength(links) {
        std::iota(order.begin(), order.end(), 0U);
        strength.push_back(0);
        for (unit_record& u : unit) u.entries = 1;
    }
    [[nodiscard]] arrangement view() { return {order, strength, unit, 1}; }
    [[nodiscard]] bool share_pool(std::uint32_t a, std::uint32_t b) const {
        return unit[a].where.first == unit[b].where.first;
    }
};

/// The first pages of both units are adjacent on storage.
bool touch(layout_under_test<dual_head>& l, const unit_record& a, const unit_record& b) {
    const std::uint32_t x = l->page(a.where, 0), y = l->page(b.where, 0);
    return x + 1 == y || y + 1 == x;
}

} // namespace

TEST_CASE("dual_head") {
    kvtl_test::layout_contract<dual_head>();
}

TEST_CASE("dual_head that pairs inside pools") {
    kvtl_test::layout_contract<dual_head>({.pair_in_pool = true});
}

TEST_CASE("two units of the largest size fill a pool from its ends and never meet") {
    layout_under_test<dual_head> l(limits);
    place left, right;
    REQUIRE(l->place_unit(1, left));
    REQUIRE(l->place_unit(1, right));
    REQUIRE(left.first == right.first);
    CHECK(l->capacity(left) == unit_pages);
    for (std::uint32_t i = 0; i < unit_pages; ++i) {
        CHECK(l->page(left, i) == i);
        CHECK(l->page(right, i) == 2 * unit_pages - 1 - i);
    }
    CHECK(l->page(left, unit_pages - 1) + 1 == l->page(right, unit_pages - 1));
}

TEST_CASE("the strongest pair of a chain touches across a pool boundary") {
    SUBCASE("a pair") {
        layout_under_test<dual_head> l(limits);
        chain c({5});
        REQUIRE(l->arrange(c.view()));
        CHECK(touch(l, c.unit[0], c.unit[1]));
        CHECK_FALSE(c.share_pool(0, 1));
    }
    SUBCASE("strong links at the ends") {
        layout_under_test<dual_head> l(limits);
        chain c({9, 1, 9});
        REQUIRE(l->arrange(c.view()));
        CHECK(touch(l, c.unit[0], c.unit[1]));
        CHECK(c.share_pool(1, 2));
        CHECK(touch(l, c.unit[2], c.unit[3]));
    }
    SUBCASE("the strong link in the middle") {
        layout_under_test<dual_head> l(limits);
        chain c({2, 9, 2});
        REQUIRE(l->arrange(c.view()));
        CHECK(c.share_pool(0, 1));
        CHECK(touch(l, c.unit[1], c.unit[2]));
        CHECK(c.share_pool(2, 3));
        CHECK(l->used() == 2 * 2 * unit_pages); // a chain that begins on the left wastes no half
    }
}

TEST_CASE("pair_in_pool exchanges the two kinds of links") {
    layout_under_test<dual_head> l(limits, {.pair_in_pool = true});
    SUBCASE("a pair") {
        chain c({5});
        REQUIRE(l->arrange(c.view()));
        CHECK(c.share_pool(0, 1));
    }
    SUBCASE("the strong link in the middle") {
        chain c({2, 9, 2});
        REQUIRE(l->arrange(c.view()));
        CHECK(touch(l, c.unit[0], c.unit[1]));
        CHECK(c.share_pool(1, 2));
        CHECK(touch(l, c.unit[2], c.unit[3]));
    }
}

TEST_CASE("units outside chains fill the halves that chains leave") {
    layout_under_test<dual_head> l(limits);
    chain c({7, 0, 0}); // 0-1 touch and leave two halves; 2 and 3 are single
    REQUIRE(l->arrange(c.view()));
    CHECK(l->used() == 2 * 2 * unit_pages);
    CHECK((c.share_pool(2, 0) || c.share_pool(2, 1)));
    CHECK((c.share_pool(3, 0) || c.share_pool(3, 1)));
}

TEST_CASE("a partner slot that becomes free is taken before a new pool is begun") {
    layout_under_test<dual_head> l(limits);
    std::vector<place> at(8);
    for (place& where : at) REQUIRE(l->place_unit(1, where)); // four full pools
    l->release(at[5]);
    place next;
    REQUIRE(l->place_unit(1, next));
    CHECK(next.first == at[5].first);
    CHECK(next.extra == at[5].extra);
    l->release(at[2]);
    l->release(at[3]); // a whole pool is free now: it counts for nobody
    CHECK(l->used() == 3 * 2 * unit_pages);
    CHECK(l->allocate_run() == at[2].first * 2 * unit_pages);
    CHECK(l->top() == 4 * 2 * unit_pages);
}

TEST_CASE("the file ends with its last whole pool") {
    layout_under_test<dual_head> l(kvtl_test::limits_of(5 * 2 * unit_pages + 3, unit_pages));
    std::vector<place> at(10);
    for (place& where : at) {
        REQUIRE(l->place_unit(unit_pages, where));
        CHECK(l->page(where, unit_pages - 1) < 5 * 2 * unit_pages);
    }
    place more;
    CHECK_FALSE(l->place_unit(1, more));
    l->release(at[7]);
    CHECK(l->place_unit(unit_pages, more));
}

} // namespace layout_dual_head_test
