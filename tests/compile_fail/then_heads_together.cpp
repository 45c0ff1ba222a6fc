// Heads that decide together have one shard, heads of the second half one each.
// expect-error: \[kvtl\] granularity: First decides all heads of a layer together, so a sequence has one shard
// SPDX-License-Identifier: MIT
#include <kvtl/presets/composed.hpp>
#include <kvtl/presets/dynamickv.hpp>

struct bad : kvtl::presets::then<kvtl::presets::compress_kv, kvtl::presets::dynakv> {};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
