// Squeezed Attention: k-means clusters of a fixed prefix, and all entries of those clusters that promise more
// than a share of the attention.
//
// Paper: "Squeezed Attention: Accelerating Long Context Length LLM Inference". The threshold is one for the model; it is
// found when the prompt ends, for the last 100 queries of its last chunk, and lets half of what top-k would take pass on
// average (`selector.kept`; 1: top-k): what one query leaves, another may have. attend_tokens bounds what passes for any
// query, so it should be larger than the mean that is wanted. Deviations: that bound; shares of the mean entry instead of
// the whole, so that a context may grow; one level of clusters instead of a hierarchy; query heads that share keys choose
// together; decoded entries join the nearest cluster as DynaKV's "static update" does, where the paper attends all of them.
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
