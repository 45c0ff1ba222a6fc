// PQCache: single tokens, scored by product codes of their keys. Codebooks are fitted to the prompt; new
// tokens take the nearest code (a static update).
//
// Paper: "PQCache: Product Quantization-based KVCache for Long Context LLM Inference" (§3.2-3.4): m = 2 parts
// with 64 centroids each. The scores of each query head are soft-maxed over all entries that can be chosen
// (all but sinks and window) and summed over the group. 32 sinks, an LFU cache.
//
// Deviations:
//   - The window has 32 entries. In the paper half of the attended tokens are recent.
//   - Codebooks are fitted to the first chunk of the prompt.
//   - The cache holds tokens, not blocks of 128 that are admitted by hits.
//   - Keys and values lie together on storage.
//   - A code takes a byte.
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

    /// Smaller codebooks, never below 4 bits, then fewer parts: a code is one byte per part. The cache of
    /// tokens takes the memory that the index leaves, so it needs no setting.
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
