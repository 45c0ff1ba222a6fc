// KIVI: keys with a step per channel, values with a step per token, 4 or 2 bits, and the latest tokens as plain rows.
//
// Paper: "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache" (Liu et al. 2024). Composed here:
//   - flexgen with groups of 32 consecutive tokens. All groups are attended. They lie on storage unless they fit into
//     memory;
//   - one step for 32 tokens of a channel of keys, and one for 32 channels of a token's value;
//   - a window of at least 32 tokens. The paper calls it the residual length: 32 in the authors' example, 128 in the
//     experiments;
//   - a prompt that attends plain rows, as in the paper.
//
// Deviation: steps are fitted by least squares, not to the range.
//
//   kivi_4  4 bits: an entry of D = 64 takes 80 bytes instead of 256.
//   kivi_2  2 bits: 48 bytes.
//
// A group takes whole pages of 4 KiB. If a layer has few heads, larger groups waste less of these pages
// (clusterer.group_tokens, a multiple of 32).
//
// This codec does not work with clusters. 32 tokens share a record, and entries of clusters move one by one.
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
