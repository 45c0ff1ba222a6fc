// What a codec fits to a prompt's keys before RoPE it fits to all of them.
// expect-error: \[kvtl\] compressor: it is fitted to the keys of a whole prompt before RoPE, but a retention that drops
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/shadowkv.hpp>

struct bad : kvtl::presets::shadowkv {
    using retention = kvtl::drop<kvtl::voting_heads>;
};

template class kvtl::kv_manager<bad>;
