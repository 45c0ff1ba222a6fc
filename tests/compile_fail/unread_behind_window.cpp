// The window of `full` holds the whole sequence: nothing is left to be grouped and chosen.
// expect-error: \[kvtl\] preset: nothing reads its clusterer, index, selector and codec, as its window holds the whole sequence
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/cluster_fixed_groups.hpp>
#include <kvtl/presets/full.hpp>

struct bad : kvtl::presets::full {
    using clusterer = kvtl::fixed_groups;
};

template class kvtl::kv_manager<bad>;
