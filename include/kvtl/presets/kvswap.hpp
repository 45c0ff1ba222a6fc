// KVSwap: groups of consecutive tokens of all KV heads on storage, scored by low-rank keys in memory, and
// read one layer ahead.
//
// Paper: "KVSwap: Disk-aware KV Cache Offloading for Long-Context On-device Inference". Composed here:
//   - joint-head low-rank keys K A, with A from an offline SVD (§3.1);
//   - one score for all query heads; the best token of a group is the score of the group; top-M groups, with
//     M G = attend_tokens (§3.3);
//   - the query predicted from the previous layer's input (§3.4). Layers 0 and 1 choose with their true
//     queries, as in the authors' code;
//   - a reuse buffer per layer, in which a miss replaces the oldest group that the step did not hit (§3.5).
//     The authors' code overwrites any such slot;
//   - the rolling buffer, which is the window of an incomplete group.
//
// Open in the paper and decided here: A is fitted to post-RoPE keys. The score uses the mean query, one
// product of r numbers per token, as in the authors' code.
//
//   kvswap_softmax  a softmax is applied to the scores of each query head before they are summed. So a head
//                   with one large score outweighs heads with flat scores. Cost: H G times the products, and
//                   an exponential for each.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_low_rank_keys.hpp>
#include <kvtl/policies/replace_fifo_by_lane.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct kvswap : offloaded {
    static constexpr std::string_view name = "kvswap";
    static constexpr std::uint32_t window_tokens = 4; ///< the rolling buffer: at least one group
    static constexpr std::uint32_t sink_tokens = 0;
    using clusterer = layer_groups<4>;
    using index = low_rank_keys;
    using selector = topk<reduce::group_mean, query::predicted>;
    using replacement = fifo_by_lane;
    using schedule = next_layer;

    /// Lower rank (sigma follows from memory, Appendix A), never below 8.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.rank <= 8) return false;
        c.index.rank /= 2;
        return true;
    }
};

struct kvswap_softmax : kvswap {
    static constexpr std::string_view name = "kvswap_softmax";
    using selector = topk<reduce::softmax_sum, query::predicted>;
};

} // namespace presets

using kvswap = kv_manager<presets::kvswap, engine_inputs_for<presets::kvswap>>;
using kvswap_softmax = kv_manager<presets::kvswap_softmax, engine_inputs_for<presets::kvswap_softmax>>;

}} // namespace kvtl::v0
