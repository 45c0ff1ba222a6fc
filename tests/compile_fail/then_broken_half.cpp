// A slot that breaks a rule is explained in a composed preset as in any other.
// expect-error: \[kvtl\] selector: it chooses by score, but this index keeps none
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>

struct bad : kvtl::presets::snapkv_then_dynakv {
    using index = kvtl::no_index;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
