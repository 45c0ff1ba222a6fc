// A budget that is settled after the last layer is too late: layers move when their prompt ends.
// expect-error: \[kvtl\] then: First's heads must keep equally many entries
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynamickv.hpp>

struct bad : kvtl::presets::then<kvtl::presets::dynamickv, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
