// Two presets that a user might write: plain offloading, every unit read at every step. Units are runs of
// consecutive tokens, of one KV head or of the whole layer.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/presets/dynakv.hpp>

#include "support/cache_fixture.hpp"

namespace offload_groups_test { namespace {

struct offload_groups : kvtl::presets::full {
    static constexpr std::string_view name = "offload_groups";
    static constexpr std::uint32_t window_tokens = 16;
    static constexpr std::uint32_t sink_tokens = 2;
    using clusterer = kvtl::fixed_groups;
    using layout = kvtl::unit_contiguous;
};

struct offload_in_order : offload_groups {
    static constexpr std::string_view name = "offload_in_order";
    using layout = kvtl::sequence_order;
};

struct offload_layers : offload_groups {
    static constexpr std::string_view name = "offload_layers";
    using clusterer = kvtl::fixed_layer_groups;
};

} // namespace
} // namespace offload_groups_test

template class kvtl::kv_manager<offload_groups_test::offload_groups>;
template class kvtl::kv_manager<offload_groups_test::offload_in_order>;
template class kvtl::kv_manager<offload_groups_test::offload_layers>;

namespace offload_groups_test {

TEST_CASE("offloaded groups are dense attention") {
    kvtl_test::equals_dense<kvtl::kv_manager<offload_groups>>();
}

TEST_CASE("offloaded groups in token order are dense attention") {
    kvtl_test::equals_dense<kvtl::kv_manager<offload_in_order>>();
}

TEST_CASE("offloaded groups of whole layers are dense attention") {
    kvtl_test::equals_dense<kvtl::kv_manager<offload_layers>>();
}

} // namespace offload_groups_test
