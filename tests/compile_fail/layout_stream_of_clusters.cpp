// Clusters cannot be found in a stream of entries in token order.
// expect-error: \[kvtl\] layout: entries lie in token order, which needs units that are runs of consecutive
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using layout = kvtl::sequence_order;
};

template class kvtl::kv_manager<bad>;
