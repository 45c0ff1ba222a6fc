// ShadowKV: keys are rebuilt from a low-rank code in memory, and only values are on storage. Chunks of tokens
// are chosen by their mean key.
//
// Paper: "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference" (§4):
//   - a joint-head SVD of the keys before RoPE at the end of prefill (rank 160);
//   - chunk landmarks, the mean keys after RoPE; landmark scores after softmax, maximum over the query group;
//     every KV head chooses for itself;
//   - outliers, the chunks that their landmarks represent least. They are kept exactly and always attended
//     (48, or 24 per 1,024 tokens of budget if values are offloaded). So are the most recent chunks (the
//     window).
// The extension to storage follows KVSwap's authors.
//
// Decided by measurement (bench/results): chunks of 4, not 8. The mean over a chunk loses single facts, the
// rank does not. KVSwap's authors run it with 8 and 16. All heads share the code, and so the chunks. A chunk is
// read for all heads as soon as one of them chooses it, and each head attends its own choice. This reads up to
// H times the bytes that chunks of single heads would take.
//
//   shadowkv_joint  one choice for all heads of a layer, so it reads no bytes that a head did not choose. It
//                   reads as many bytes as the authors' system, in 1/H of the requests. Comparisons of speed
//                   use it.
//
// Deviations:
//   - The basis is fitted to the first chunk of the prompt that prefill() gets (it should have at least
//     `rank` tokens).
//   - Decoded tokens are encoded with the basis of the prompt. In the paper they stay in memory for good.
//   - In the paper, each KV head has one list of outliers, which are kept exactly and always attended. Here
//     there are two lists. Each head has its own list of chunks that it always attends (`landmark`): from all
//     chunks, decoded ones included, up to 3/16 of the budget. All heads of a layer share a list of chunks with
//     exact keys (`prompt_svd`): only from the prompt's first chunk, ranked by the head that agrees least with
//     its landmark. So the keys of a chunk that is always attended may be rebuilt from codes, and a chunk with exact
//     keys is attended only if it is chosen.
//
// Exact chunks are the units of the cache. With outliers, compressor.chunk must equal clusterer.group_tokens
// and compressor.skip must equal sink_tokens; otherwise open() refuses.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_prompt_svd.hpp>
#include <kvtl/policies/index_landmark.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

namespace presets {

struct shadowkv : offloaded {
    static constexpr std::string_view name = "shadowkv";
    using clusterer = layer_groups<4>;
    using index = landmark;
    using compressor = prompt_svd<>;
    using selector = topk<reduce::by_head<reduce::softmax_max>>;
    static constexpr index::config index_config{.outliers = 48};
    static constexpr compressor::config compressor_config{.outliers = 48, .chunk = 4, .skip = sink_tokens};

    /// Shrinks the part that takes most of the memory. Landmarks: chunks of twice the length, up to 64
    /// tokens, and half as many outliers. Outliers: half as many. Codes: three quarters of the rank, down to
    /// 8.
    template <class Config> static bool shrink(Config& c) noexcept {
        auto& group = c.clusterer.group_tokens;
        const std::size_t tokens = c.max_tokens;
        const bool shorter = group >= 64, lowest = c.compressor.rank <= 8;
        const std::size_t width = std::size_t{c.shape.kv_heads} * c.shape.head_dim;
        const std::size_t landmarks = shorter ? 0 : tokens / group * width;
        const std::size_t outliers = std::size_t{c.compressor.outliers} * c.compressor.chunk * width;
        const std::size_t codes = lowest ? 0 : tokens * std::min<std::size_t>(c.compressor.rank, width);
        const std::size_t most = std::max({landmarks, outliers, codes});
        if (most == 0) return false;
        if (most == codes) {
            c.compressor.rank =
                static_cast<std::uint32_t>(std::min<std::size_t>(c.compressor.rank, width)) * 3 / 4;
            return true;
        }
        if (most == landmarks) c.compressor.chunk = group *= 2;
        c.index.outliers = c.compressor.outliers /= 2;
        return true;
    }
};

struct shadowkv_joint : shadowkv {
    static constexpr std::string_view name = "shadowkv_joint";
    using selector = topk<reduce::softmax_max>;
};

} // namespace presets

using shadowkv_joint = kv_manager<presets::shadowkv_joint>;
using shadowkv = kv_manager<presets::shadowkv>;

}} // namespace kvtl::v0
