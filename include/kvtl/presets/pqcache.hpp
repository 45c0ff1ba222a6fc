// PQCache: single tokens, scored by product codes of their keys; codebooks from the prompt, new tokens take
// the nearest code (a static update).
//
// Paper: "PQCache: Product Quantization-based KVCache for Long Context LLM Inference" (§3.2-3.4): m = 2 parts
// of 64 centroids, scores of the query heads of a group summed, 32 sinks, an LFU
// cache. Deviations: the window has 32 entries (the paper: half of the tokens attended are recent); codebooks
// are fitted to the prompt's first chunk; the cache holds tokens, not blocks of 128 with admission by hits;
// keys and values lie together on storage; codes take a byte. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_product_codes.hpp>
#include <kvtl/policies/replace_lfu.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl::inline v0 {

namespace presets {

struct pqcache : offloaded {
    static constexpr std::string_view name = "pqcache";
    static constexpr std::uint32_t sink_tokens = 32;
    using index = product_codes;
    using selector = topk<reduce::group_mean>; ///< the sum's order
    using replacement = lfu;
};

} // namespace presets

template <class Geometry> using pqcache = kv_manager<presets::pqcache, Geometry>;

} // namespace kvtl::inline v0
