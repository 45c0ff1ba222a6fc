// Presets that decide once, when the prompt ends: its last queries decide which entries stay. Every head keeps
// the same number.
//
//   snapkv_qhead  SnapKV as its authors run it: every query head keeps its own entries, average of 5, window
//                 32.
//   snapkv_group  SnapKV with one choice per KV head (mean over the query group): a quarter of the memory at
//                 G = 4. Most reimplementations call this SnapKV.
//   snapkv_layer  one choice per layer: scores summed over all query heads. Codecs and units over all heads
//                 of a layer need it (token-wise DynaKV, Table 5).
//   expected_attention  Expected Attention: the weight that future queries are expected to give, times the length
//                 of the value. 4 sinks, window 32. The queries of the window are the sample of future queries.
//   r_kv          R-KV: attention of the last 8 queries, minus the similarity to other keys. Decides once, at
//                 the end of the prompt.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_expected_weight.hpp>
#include <kvtl/policies/retain_redundancy.hpp>
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

struct expected_attention : snapkv_group {
    static constexpr std::string_view name = "expected_attention";
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = drop<expected_weight>;
};

struct r_kv : full {
    static constexpr std::string_view name = "r_kv";
    static constexpr std::uint32_t window_tokens = 8;
    using retention = drop<redundancy>;
};

} // namespace presets

using snapkv_group = kv_manager<presets::snapkv_group>;
using snapkv_layer = kv_manager<presets::snapkv_layer>;
using snapkv_qhead = kv_manager<presets::snapkv_qhead>;
using expected_attention = kv_manager<presets::expected_attention>;
using r_kv = kv_manager<presets::r_kv>;

}} // namespace kvtl::v0
