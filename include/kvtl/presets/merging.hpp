// Presets that merge what they cannot keep. Both attend merged entries with their counts, which the papers do
// not.
//
//   d2o        D2O: ranked by attention over the whole prompt and since; what leaves goes into the most
//              similar entry that stays, if it is more similar than usual. Layers whose attention is dense
//              get more, the first two and the last get the mean. 4 sinks, half of the entries recent.
//              Deviations: the running mean moves entry by entry and head by head, not batch by batch over
//              all heads; the paper evicts nothing from the three layers that are left out, here the budget
//              holds for them as well; layers weigh e^-variance, which is ours: the published code ends
//              at the variance (normalised among the heads, as here).
//   kv_merger  KVMerger: what leaves goes into its neighbour in token order when their keys are similar,
//              weighted by a Gaussian. Deviations: similarity 0.8 and the width are ours (not published); the
//              score that says who stays is H2O's over the prompt.
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
