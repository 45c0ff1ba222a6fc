// demote: what a preset reads of the slot is what its score, its codec and its settings say.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/policies/retain_demote.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_key_norm.hpp>

#include "contracts/retention.hpp"

namespace retain_demote_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("demote hands on what its score declares, and names its codec") {
    using watching = demote<heavy_hitters_after_prompt, int4_group<>, channels::balanced>;
    static_assert(retention_for<watching> && retention_demotes<watching>);
    static_assert(!retention_demotes<drop<heavy_hitters>>);
    CHECK(watching::drops);
    CHECK_FALSE(watching::merges);
    CHECK(watching::balances_channels);
    CHECK(watching::name == "demote_balanced(heavy_hitters_after_prompt,int4_group)");
    CHECK(watching::reads_mass == feedback::full);
    using blind = demote<key_norm, int2_group<>>;
    CHECK(blind::name == "demote(key_norm,int2_group)");
    CHECK_FALSE(blind::balances_channels);
    CHECK(blind::needs == engine_input::k);
    CHECK(blind::reads_mass == feedback::unused);
    CHECK(contains(demote<key_norm, int2_group<>, channels::balanced>::needs, engine_input::q));
    CHECK(std::is_same_v<watching::config, heavy_hitters_after_prompt::config>);
}

} // namespace retain_demote_test
