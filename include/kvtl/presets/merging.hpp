// Presets that merge dropped entries into kept ones. d2o and kv_merger attend merged entries with their counts,
// unlike the papers.
//
//   d2o        D2O: entries are ranked by attention over the whole prompt and since. A dropped entry is
//              merged into the most similar kept entry, if their similarity is above the running mean. Layers
//              with dense attention get more entries; the first two and the last get the mean. 4 sinks, half
//              of the entries recent. Deviations:
//              - The running mean moves entry by entry and head by head, not batch by batch over all heads.
//              - The paper evicts nothing from these three layers. Here the budget holds for them as well.
//              - A layer's weight is e^-variance, a choice of kvtl. The published code computes the variance
//                (normalised among the heads, as here) and stops there.
//   kv_merger  KVMerger: neighbours with similar keys form sets, and each set becomes one row, a Gaussian mean
//              around the member with the highest attention. Only the paper's abstract was at hand; the rest
//              comes from papers that cite it. Deviations:
//              - The paper sets a threshold for the cosine (0.75), which determines how much is kept. Here
//                keep_tokens determines the threshold of a head. Nothing is dropped unless cosines are 0 or less.
//              - The width of the Gaussian is the root of the mean squared distance to the pivot. The paper's
//                formula (the mean of the weights, divided by sqrt(2)) contains the weights themselves.
//              - The paper does not merge the entries with the most attention. `unmerged` is the share of kept
//                entries that are not merged. 0 loses least here (bench/results/log/merging.md).
//              - A prompt is merged once, and decoded entries stay. Half of the entries are the most recent
//                ones. With a window of 8, the divergence on text is about 4 times as large.
//   cam        CaM: as h2o, but the value of an entry that leaves is spread over the next 32 kept tokens, with
//              probability a / max a, where a is the attention received so far (as in its published code; the
//              paper divides by a mean). Deviation: the draws depend on a seed, the token and its key, so that runs
//              can be repeated.
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
    static constexpr std::uint32_t window_tokens = automatic; // half of keep_tokens
    static constexpr std::uint32_t sink_tokens = 4;
    using retention = merge_into<heavy_hitters_of_prompt, similar_runs>;
};

struct cam : full {
    static constexpr std::string_view name = "cam";
    static constexpr std::uint32_t window_tokens = automatic; // half of keep_tokens
    using retention = merge_into<heavy_hitters, next_values>;
};

} // namespace presets

using d2o = kv_manager<presets::d2o>;
using kv_merger = kv_manager<presets::kv_merger>;
using cam = kv_manager<presets::cam>;

}} // namespace kvtl::v0
