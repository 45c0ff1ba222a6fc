// Eviction comes first: a preset that keeps everything has nothing to hand over.
// expect-error: \[kvtl\] then: First must drop entries and be no composition itself
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>

struct bad : kvtl::presets::then<kvtl::presets::dynakv, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
