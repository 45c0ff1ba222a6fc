// Sequential clusterers: units are runs of consecutive tokens.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_single_tokens.hpp>

#include "contracts/clusterer.hpp"

#include <doctest/doctest.h>

namespace cluster_single_tokens_test {

TEST_CASE("single_tokens") {
    kvtl_test::clusterer_contract<kvtl::single_tokens>({});
}

TEST_CASE("every token is a unit of its own") {
    kvtl_test::lane_model<kvtl::single_tokens> lane({}, 2);
    for (std::uint32_t i = 0; i < 10; ++i) {
        const auto a = lane.assign({0.0F, 0.0F});
        REQUIRE(a.how == kvtl::growth::open);
        lane.open({0.0F, 0.0F}, a.unit);
    }
    CHECK(lane.count() == 10);
}

} // namespace cluster_single_tokens_test
