// Tables of the second half are per KV head.
// expect-error: \[kvtl\] then: First keeps entries for every query head
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>

struct bad : kvtl::presets::then<kvtl::presets::snapkv_qhead, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
