// layer_virtualised: frames have memory in turn; no selector that chooses ahead.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/schedule_layer_virtualised.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/policies/schedule_on_demand.hpp>

#include "contracts/schedule.hpp"

namespace schedule_layer_virtualised_test {

TEST_CASE("layer_virtualised") {
    kvtl_test::schedule_contract<kvtl::layer_virtualised>(false);
    static_assert(kvtl::virtualises<kvtl::layer_virtualised>);
    static_assert(!kvtl::virtualises<kvtl::on_demand> && !kvtl::virtualises<kvtl::next_layer>);
}

} // namespace schedule_layer_virtualised_test
