// An ablation is two lines: inherit, and name the slot that changes.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct ablation : kvtl::presets::dynakv {
    using layout = kvtl::unit_contiguous;
};

template class kvtl::kv_manager<ablation>;
