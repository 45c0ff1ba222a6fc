// ShadowKV: keys are rebuilt from a low-rank code in memory, only values are on storage; chunks of tokens are chosen
// by their mean key.
//
// Paper: "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference" (§4): a joint-head SVD of the
// keys before RoPE at the end of prefill (rank 160), chunk landmarks = mean keys after RoPE, soft-maxed landmark scores,
// maximum over the query group, every KV head for itself; the chunks that their landmarks represent least are kept
// exactly and always attended (48, or 24 per 1,024 tokens of budget where values are offloaded), as are the most recent
// ones (the window). Extended to storage as KVSwap's authors did.
//
// Decided by measurement (bench/RESULTS.md): chunks of 4, not 8, as it is the mean over a chunk that loses single
// facts, not the rank; KVSwap's authors run it with 8 and 16. A chunk is read for all heads as soon as one of them
// chooses it, as the code is joint and so are the chunks; each attends what it chose. That reads up to H times the bytes
// that chunks of single heads would take:
//
//   shadowkv_joint  one choice for all heads of a layer, and so no byte that a head did not choose: as many as its
//                   authors read, in an H-th of the requests. What speed is compared with.
//
// Deviations: the basis is fitted to the first chunk of the prompt that prefill() is given (at least `rank` tokens should
// come in it); decoded tokens are coded with the prompt's basis like the prompt's instead of staying in memory for good.
// The paper's outliers are one list per KV head, kept exactly and attended. Here these are two lists: what a head
// always attends is its own (`landmark`: of all chunks that have come, decoded ones too, as far as 3/16 of the budget
// goes); whose keys are exact is one for all heads of a layer (`prompt_svd`: by the head that agrees least, of the
// prompt's first chunk alone). So a chunk that a head pins may be rebuilt from codes like any other, and one with exact
// keys is attended only where it is chosen. Exact chunks are the units of the cache: who sets clusterer.group_tokens or
// sink_tokens sets compressor.chunk or compressor.skip, too, or open() refuses.
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

    /// What takes most of the memory: chunks of twice the length, up to 64 tokens, with half as many outliers; half the
    /// outliers; or three quarters of the rank, down to 8.
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
