// Presets that merge dropped entries into kept ones. Merged entries are attended with their counts, unlike in
// the papers.
//
//   d2o        D2O: entries are ranked by attention over the whole prompt and since. A dropped entry is
//              merged into the most similar kept entry, if their similarity is above the running mean. Layers
//              with dense attention get more entries; the first two and the last get the mean. 4 sinks, half
//              of the entries recent. Deviations:
//              - The running mean moves entry by entry and head by head, not batch by batch over all heads.
//              - The paper evicts nothing from these three layers. Here the budget holds for them as well.
//              - Layers weigh e^-variance, which is ours. The published code ends at the variance (normalised
//                among the heads, as here).
//   kv_merger  KVMerger: a dropped entry is merged into its neighbour in token order if their keys are
//              similar, weighted by a Gaussian. Deviations: similarity 0.8 and the width are ours (not
//              published). H2O's score over the prompt decides which entries stay.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_merge.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct d2o : full {
    static constexpr std::string_view name = "d2o";
    static constexpr std::uint32_t window_tokens = automatic; // half of keep_tokens
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = merge_into<heavy_hitters_after_prompt, nearest_key>;
    using budget = cascade_between<2, 1>;
};

struct kv_merger : full {
    static constexpr std::string_view name = "kv_merger";
    static constexpr std::uint32_t window_tokens = 8;
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = merge_into<heavy_hitters_of_prompt, similar_neighbour>;
};

} // namespace presets

using d2o = kv_manager<presets::d2o>;
using kv_merger = kv_manager<presets::kv_merger>;

}} // namespace kvtl::v0
