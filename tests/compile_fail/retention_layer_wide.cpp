// A codec over all heads of a layer cannot live with heads that keep tokens of their own.
// expect-error: \[kvtl\] granularity: a policy works on all KV heads of a layer together, but this retention lets every head keep
// SPDX-License-Identifier: MIT
#include <kvtl/presets/snapkv.hpp>

struct joint : kvtl::raw<kvtl::f16> {
    static constexpr bool layer_wide_only = true;
};
struct bad : kvtl::presets::snapkv_group {
    using compressor = joint;
};

template class kvtl::kv_manager<bad>;
