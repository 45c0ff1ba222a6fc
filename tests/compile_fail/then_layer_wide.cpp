// Units of all heads need heads that keep the same tokens.
// expect-error: \[kvtl\] granularity: Second's units or codec span all KV heads of a layer, but First lets every head keep tokens of its own
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>

struct bad : kvtl::presets::then<kvtl::presets::snapkv_group, kvtl::presets::flexgen> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
