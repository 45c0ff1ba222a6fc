// topk ranks by score; an index that keeps nothing cannot give any.
// expect-error: \[kvtl\] selector: it chooses by score, but this index keeps none; use an index such as centroid
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using index = kvtl::no_index;
};

template class kvtl::kv_manager<bad>;
