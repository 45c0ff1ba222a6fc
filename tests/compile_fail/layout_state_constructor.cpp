// A layout is made from its config, its limits and the memory for its tables.
// expect-error: \[kvtl\] layout: add `class state` default-constructible and constructible from \(config, layout_limits
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unfounded : kvtl::sequence_order {
    struct state : kvtl::sequence_order::state {};
};
struct bad : kvtl::presets::dynakv {
    using layout = unfounded;
};

template class kvtl::kv_manager<bad>;
