// KIVI: keys with a step per channel, values with a step per token, 4 or 2 bits, and the latest tokens as plain rows.
//
// Paper: "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache" (Liu et al. 2024). Composed here: flexgen with
// groups of 32 consecutive tokens, which are all attended and lie on storage unless they fit into memory; groups of 32
// tokens of a channel for keys and of 32 channels of a token for values; a window of at least 32 tokens (the paper's
// residual length, 32 in the authors' example and 128 in its experiments). Steps are by least squares, not by the range.
// The prompt itself attends plain rows, as in the paper.
//
//   kivi_4  4 bits: an entry of D = 64 takes 80 bytes instead of 256.
//   kivi_2  2 bits: 48 bytes.
//
// A group takes whole pages of 4 KiB. Where a layer has few heads, larger groups waste less of them
// (clusterer.group_tokens, a multiple of 32).
//
// No cluster can be used with it: entries of clusters move one by one, and 32 tokens share a record.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_channel_group.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct kivi_4 : flexgen {
    static constexpr std::string_view name = "kivi_4";
    static constexpr std::uint32_t sink_tokens = 0;
    using clusterer = layer_groups<32>;
    using compressor = int4_channel_group<>;
};

struct kivi_2 : kivi_4 {
    static constexpr std::string_view name = "kivi_2";
    using compressor = int2_channel_group<>;
};

} // namespace presets

using kivi_4 = kv_manager<presets::kivi_4>;
using kivi_2 = kv_manager<presets::kivi_2>;

}} // namespace kvtl::v0
