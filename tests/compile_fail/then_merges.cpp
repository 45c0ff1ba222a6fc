// Weights of merged entries would be lost on the way to storage.
// expect-error: \[kvtl\] then: First merges entries or moves their positions
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/merging.hpp>

struct bad : kvtl::presets::then<kvtl::presets::d2o, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
