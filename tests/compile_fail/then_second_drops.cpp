// Two evictions do not chain: the second half chooses anew at every step.
// expect-error: \[kvtl\] then: Second must keep all entries that it is given
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>

struct bad : kvtl::presets::then<kvtl::presets::snapkv_group, kvtl::presets::snapkv_group> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
