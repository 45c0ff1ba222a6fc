// A policy that works on whole layers does not go with units of one KV head.
// expect-error: \[kvtl\] granularity: a policy works on all KV heads of a layer together, but the clusterer's units belong to one head
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct joint : kvtl::centroid {
    static constexpr bool layer_wide_only = true;
};
struct bad : kvtl::presets::dynakv {
    using index = joint;
};

template class kvtl::kv_manager<bad>;
