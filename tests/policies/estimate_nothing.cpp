// nothing: what is not read is not there.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/estimate_nothing.hpp>
#include <kvtl/presets/full.hpp>

#include "contracts/estimator.hpp"

namespace estimate_nothing_test {

using namespace kvtl;

TEST_CASE("nothing") {
    kvtl_test::estimator_contract<nothing>();
    CHECK(std::is_same_v<presets::full::estimator, nothing>);
}

} // namespace estimate_nothing_test
