// Keys that are rebuilt at their positions need all of them.
// expect-error: \[kvtl\] index: it rebuilds keys or needs their positions, but a retention that drops leaves gaps
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/shadowkv.hpp>

struct bad : kvtl::presets::shadowkv {
    using retention = kvtl::drop<kvtl::voting_heads>;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
