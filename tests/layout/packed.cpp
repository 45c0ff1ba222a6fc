// packed places no units itself: its runs are under contract here, what moves in them in manager/placement.cpp.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/packed.hpp>

#include "contracts/layout.hpp"

#include <doctest/doctest.h>

namespace layout_packed_test {

TEST_CASE("packed") {
    kvtl_test::layout_contract<kvtl::packed>();
}

TEST_CASE("packed is a stream whose units lie one behind the other") {
    static_assert(kvtl::packed::by_entry && !kvtl::packed::wants_correlation);
    static_assert(kvtl::detail::packs_units<kvtl::packed>());
    static_assert(!kvtl::detail::packs_units<kvtl::sequence_order>());
}

} // namespace layout_packed_test
