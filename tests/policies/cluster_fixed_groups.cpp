// fixed_groups and fixed_layer_groups: G consecutive tokens per unit.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>

#include "contracts/clusterer.hpp"

#include <doctest/doctest.h>

namespace cluster_fixed_groups_test {

using namespace kvtl;

TEST_CASE("fixed_groups") {
    static_assert(fixed_groups::unit_of == granularity::head);
    kvtl_test::clusterer_contract<fixed_groups>({});
}

TEST_CASE("fixed_groups of five") {
    kvtl_test::clusterer_contract<fixed_groups>({.group_tokens = 5});
}

TEST_CASE("fixed_layer_groups") {
    static_assert(fixed_layer_groups::unit_of == granularity::layer);
    kvtl_test::clusterer_contract<fixed_layer_groups>({});
}

TEST_CASE("entry i goes to unit i / G") {
    kvtl_test::lane_model<fixed_groups> lane({.group_tokens = 6}, 1);
    for (std::uint32_t i = 0; i < 50; ++i) {
        const std::vector<float> key{static_cast<float>(i)};
        const auto a = lane.assign(key);
        a.how == growth::open ? lane.open(key, a.unit) : lane.append(a.unit, key);
        CHECK(lane.keys(i / 6).back() == key);
        CHECK(lane.count() == i / 6 + 1);
    }
}

TEST_CASE("entries that wait in the buffer count towards their group") {
    kvtl_test::lane_model<fixed_groups> lane({.group_tokens = 4}, 1);
    lane.open({0.0F}, none);
    lane.record(0).buffered = 2;
    CHECK(lane.assign({1.0F}).how == growth::append);
    lane.record(0).buffered = 3;
    CHECK(lane.assign({1.0F}).how == growth::open);
}

TEST_CASE("group_tokens that cannot work are refused by name") {
    using state = fixed_groups::state;
    for (const std::uint32_t tokens : {0U, 4097U}) {
        const status s = state::check({.group_tokens = tokens});
        CHECK(s.code() == errc::invalid_argument);
        CHECK(std::string(s.what()).find("clusterer.group_tokens is " + std::to_string(tokens)) == 0);
    }
    CHECK(state::check({.group_tokens = 4096}).ok());
}

} // namespace cluster_fixed_groups_test
