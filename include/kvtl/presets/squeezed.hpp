// Squeezed Attention: k-means clusters of a fixed prefix, and all entries of clusters whose expected share of
// the attention is above a threshold.
//
// Paper: "Squeezed Attention: Accelerating Long Context Length LLM Inference". There is one threshold for the
// model. It is found when the prompt ends, from the last 100 queries of its last chunk. On average it passes
// half of the entries that top-k would take (`selector.kept`; 1: top-k): entries that one query leaves are
// free for another. attend_tokens bounds the entries that pass for any query, so it should be larger than the
// mean that is needed.
//
// Deviations:
//   - There is that bound.
//   - Shares of the mean entry instead of the whole, so that a context may grow.
//   - One level of clusters instead of a hierarchy.
//   - Query heads that share keys choose together.
//   - Decoded entries join the nearest cluster, as in DynaKV's "static update". The paper attends all of
//     them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_threshold.hpp>
#include <kvtl/presets/dynakv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct squeezed : dynakv_static {
    static constexpr std::string_view name = "squeezed";
    using selector = threshold<reduce::group_mean>;
    using layout = unit_contiguous;
    using replacement = lru;
};

} // namespace presets

using squeezed = kv_manager<presets::squeezed>;

}} // namespace kvtl::v0
