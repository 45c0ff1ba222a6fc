// sequence_order places no units: only its runs are under contract.
// SPDX-License-Identifier: MIT
#include <kvtl/layout/sequence_order.hpp>

#include "contracts/layout.hpp"

#include <doctest/doctest.h>

namespace layout_sequence_order_test {

TEST_CASE("sequence_order") {
    kvtl_test::layout_contract<kvtl::sequence_order>();
}

TEST_CASE("a stream's runs are adjacent while the file is fresh") {
    kvtl_test::layout_under_test<kvtl::sequence_order> l(kvtl_test::limits_of(64, 1));
    for (std::uint32_t i = 0; i < 8; ++i) CHECK(l->allocate_run() == 8 * i);
    CHECK(l->allocate_run() == kvtl::none);
}

} // namespace layout_sequence_order_test
