// PQCache: single tokens, scored by product codes of their keys; codebooks from the prompt, new tokens take
// the nearest code (a static update).
//
// Paper: "PQCache: Product Quantization-based KVCache for Long Context LLM Inference" (§3.2-3.4): m = 2 parts
// of 64 centroids, scores of each query head soft-maxed over what can be chosen (all but sinks and window), summed over
// the group, 32 sinks, an LFU cache. Deviations: the window has 32 entries (the paper: half of the tokens attended are
// recent); codebooks are fitted to the prompt's first chunk; the cache holds
// tokens, not blocks of 128 with admission by hits; keys and values lie together on storage; codes take a byte.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_product_codes.hpp>
#include <kvtl/policies/replace_lfu.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct pqcache : offloaded {
    static constexpr std::string_view name = "pqcache";
    static constexpr std::uint32_t sink_tokens = 32;
    using index = product_codes;
    using selector = topk<reduce::softmax_sum>;
    using replacement = lfu;

    /// The cache of tokens is what the index leaves and needs no knob. Smaller codebooks, never below 4 bits,
    /// then fewer parts: a code is one byte per part.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.bits > 4) {
            --c.index.bits;
        } else if (c.index.parts > 1) {
            c.index.parts /= 2;
        } else {
            return false;
        }
        return true;
    }
};

} // namespace presets

using pqcache = kv_manager<presets::pqcache>;

}} // namespace kvtl::v0
