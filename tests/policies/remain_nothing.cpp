// nothing: what is not read is not there.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/remain_nothing.hpp>
#include <kvtl/presets/full.hpp>

#include "contracts/remainder.hpp"

namespace remain_nothing_test {

using namespace kvtl;

TEST_CASE("nothing") {
    kvtl_test::remainder_contract<nothing>();
    CHECK(std::is_same_v<presets::full::remainder, nothing>);
}

} // namespace remain_nothing_test
