// ShadowKV: keys are rebuilt from a low-rank code in memory, only values are on storage; chunks of 8 tokens
// are chosen by their mean key.
//
// Paper: "ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference" (§4): a joint-head
// SVD of the keys before RoPE at the end of prefill (rank 160), chunk landmarks = mean keys after RoPE,
// soft-maxed landmark scores, maximum over the query group, values fetched and keys rebuilt for the chosen
// chunks. Extended to storage as KVSwap's authors did. Deviations: the heads of a layer choose together (as
// the code is joint, so are the chunks), outlier chunks are not kept exactly, the basis is fitted to the
// first chunk of the prompt that prefill() is given (at least `rank` tokens should come in it), decoded
// tokens are coded with the prompt's basis like the prompt's instead of staying in memory for good.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_prompt_svd.hpp>
#include <kvtl/policies/index_landmark.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct shadowkv : offloaded {
    static constexpr std::string_view name = "shadowkv";
    using clusterer = layer_groups<8>;
    using index = landmark;
    using compressor = prompt_svd<>;
    using selector = topk<reduce::softmax_max>;

    /// Smaller rank, never below 8.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.compressor.rank <= 8) return false;
        c.compressor.rank = c.compressor.rank * 3 / 4;
        return true;
    }
};

} // namespace presets

template <class Geometry> using shadowkv = kv_manager<presets::shadowkv, Geometry>;

}} // namespace kvtl::v0
