// Presets that look once: the last queries of the prompt decide which entries stay, and every head keeps the
// same number.
//
//   snapkv_qhead  SnapKV as its authors run it: every query head keeps its own entries, average of 5, window
//                 32.
//   snapkv_group  SnapKV with one choice per KV head (mean over the query group): a quarter of the memory at
//                 G = 4. Most reimplementations call this SnapKV.
//   snapkv_layer  one choice per layer: scores summed over all query heads. Codecs and units over all heads
//                 of a layer need it (token-wise DynaKV, Table 5).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct snapkv_group : full {
    static constexpr std::string_view name = "snapkv_group";
    static constexpr std::uint32_t window_tokens = 32;
    using retention = drop<window_attention<over::mean, pooling::average, 5>>;
};

struct snapkv_layer : snapkv_group {
    static constexpr std::string_view name = "snapkv_layer";
    using retention = drop<voting_heads>; // all heads vote
};

struct snapkv_qhead : snapkv_group {
    static constexpr std::string_view name = "snapkv_qhead";
    using retention = drop<window_attention<over::mean, pooling::average, 5, true>>;
};

} // namespace presets

using snapkv_group = kv_manager<presets::snapkv_group>;
using snapkv_layer = kv_manager<presets::snapkv_layer>;
using snapkv_qhead = kv_manager<presets::snapkv_qhead>;

}} // namespace kvtl::v0
