// The control of granularity_layer_wide.cpp: with units of the whole layer the same index is welcome.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/presets/dynakv.hpp>

struct joint : kvtl::centroid {
    static constexpr bool layer_wide_only = true;
};
struct layer_units : kvtl::presets::dynakv {
    using clusterer = kvtl::fixed_layer_groups;
    using index = joint;
};

template class kvtl::kv_manager<layer_units>;
