// Squeezed Attention: k-means clusters of a fixed prefix, and all entries of clusters whose expected share of
// the attention is above a threshold.
//
// Paper: "Squeezed Attention: Accelerating Long Context Length LLM Inference". One threshold serves the whole
// model. It is found when the prompt ends, from the last 100 queries of its last chunk. It is set so that, on
// average, half as many entries pass as top-k would take (`selector.kept`; 1: as many as top-k). A query with
// spread attention takes more than the mean, and another query takes less. attend_tokens bounds the entries of
// every query, so set it above the mean that is needed.
//
// Deviations:
//   - The paper has no such bound.
//   - A share is relative to the mean entry, not to the whole context, so that a context may grow.
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
