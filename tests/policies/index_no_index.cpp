// no_index keeps nothing and says so.
// SPDX-License-Identifier: MIT
#include "contracts/index.hpp"

#include <kvtl/policies/index_no_index.hpp>

#include <doctest/doctest.h>

namespace index_no_index_test {

TEST_CASE("no_index") {
    static_assert(kvtl::needs_of<kvtl::no_index>() == kvtl::engine_input::nothing);
    kvtl_test::index_contract<kvtl::no_index>({}, nullptr);
}

} // namespace index_no_index_test
