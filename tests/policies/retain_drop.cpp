// drop: what a preset reads of the slot is what its score says.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_key_norm.hpp>
#include <kvtl/policies/retain_random.hpp>

#include "contracts/retention.hpp"

namespace retain_drop_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("drop hands on what its score declares") {
    using watching = drop<heavy_hitters>;
    CHECK(watching::drops);
    CHECK_FALSE(watching::merges);
    CHECK(watching::name == heavy_hitters::name);
    CHECK(watching::needs == (engine_input::q | engine_input::k));
    CHECK(watching::reads_mass == feedback::full);
    using blind = drop<key_norm>;
    CHECK(blind::needs == engine_input::k);
    CHECK(blind::reads_mass == feedback::unused);
    CHECK(std::is_same_v<blind::score, key_norm>);
    CHECK(std::is_same_v<drop<random_score>::config, random_score::config>);
}

} // namespace retain_drop_test
