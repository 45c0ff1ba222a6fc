// Decode belongs to the second half.
// expect-error: \[kvtl\] then: First evicts in decode, which belongs to Second
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/query_free.hpp>

struct bad : kvtl::presets::then<kvtl::presets::knorm, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
