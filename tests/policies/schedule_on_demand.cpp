// on_demand: reads when a layer is attended; no selector that chooses ahead.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/schedule_on_demand.hpp>

#include "contracts/schedule.hpp"

namespace schedule_on_demand_test {

TEST_CASE("on_demand") {
    kvtl_test::schedule_contract<kvtl::on_demand>(false);
}

} // namespace schedule_on_demand_test
