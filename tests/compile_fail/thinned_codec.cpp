// What a retention keeps of a prompt moves to storage as it is, so it must be plain rows.
// expect-error: \[kvtl\] retention: what it keeps of a prompt moves to storage as plain rows
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/shadowkv.hpp>

struct bad : kvtl::presets::shadowkv {
    using retention = kvtl::drop<kvtl::voting_heads>;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
