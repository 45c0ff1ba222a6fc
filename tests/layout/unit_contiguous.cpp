// unit_contiguous and correlated: adjacent pages, exactly as many as a unit needs.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/unit_contiguous.hpp>

#include "contracts/layout.hpp"

#include <doctest/doctest.h>

namespace layout_unit_contiguous_test {

using namespace kvtl;
using kvtl_test::layout_under_test;

TEST_CASE("unit_contiguous") {
    kvtl_test::layout_contract<unit_contiguous>();
}

TEST_CASE("correlated") {
    static_assert(correlated::wants_correlation && !unit_contiguous::wants_correlation);
    kvtl_test::layout_contract<correlated>();
}

TEST_CASE("unit_contiguous_whole_file") {
    kvtl_test::layout_contract<unit_contiguous_whole_file>();
}

TEST_CASE("a prompt's units follow each other in the given order") {
    layout_under_test<correlated> l(kvtl_test::limits_of(64, 4));
    oracle::generator random(3);
    kvtl_test::layout_suite::prompt p(random, 20, 3);
    REQUIRE(l->arrange(p.view()));
    std::uint32_t next = 0;
    for (const std::uint32_t u : p.order) {
        const std::uint32_t pages = (p.unit[u].entries + 3) / 4;
        CHECK(l->capacity(p.unit[u].where) == pages);
        for (std::uint32_t i = 0; i < pages; ++i) CHECK(l->page(p.unit[u].where, i) == next++);
    }
    CHECK(l->used() == next);
}

TEST_CASE("a prompt that fits nowhere in one piece falls into pieces") {
    layout_under_test<unit_contiguous> l(kvtl_test::limits_of(12, 2));
    place at[6];
    for (place& where : at) REQUIRE(l->place_unit(2, where));
    for (const std::size_t i : {0U, 2U, 4U}) l->release(at[i]);
    std::vector<unit_record> unit(3);
    for (unit_record& u : unit) u.entries = 5; // two pages of four rows
    const std::vector<std::uint32_t> order{2, 0, 1}, strength{0, 0, 0};
    REQUIRE(l->arrange({order, strength, unit, 4}));
    CHECK(l->used() == 12);
    CHECK(unit[2].where.first == at[0].first);
    CHECK(unit[0].where.first == at[2].first);
    CHECK(unit[1].where.first == at[4].first);
}

} // namespace layout_unit_contiguous_test
