// KVSwap: groups of consecutive tokens of all KV heads on storage, scored by low-rank keys in memory, read
// one layer ahead.
//
// Paper: "KVSwap: Disk-aware KV Cache Offloading for Long-Context On-device Inference". Composed here:
// joint-head low-rank keys K A with A from an offline SVD (§3.1), scores of every query head soft-maxed and
// summed over heads, the best token of a group scores it (§3.3), top-M groups with M G = attend_tokens, the
// query predicted from the previous layer's input (§3.4), a reuse buffer with FIFO (§3.5), the rolling buffer
// = the window of an incomplete group. Open in the paper and decided here: A is fitted to post-RoPE keys;
// scores are soft-maxed before the sum (both are template or calibration choices).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_low_rank_keys.hpp>
#include <kvtl/policies/replace_fifo.hpp>
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
    using selector = topk<reduce::softmax_sum, query::predicted>;
    using replacement = fifo;
    using schedule = next_layer;

    /// Smaller rank first (sigma from memory, Appendix A), never below 8.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.rank <= 8) return false;
        c.index.rank /= 2;
        return true;
    }
};

} // namespace presets

template <class Geometry, class Supplied = supplied_for<presets::kvswap>>
using kvswap = kv_manager<presets::kvswap, Geometry, Supplied>;

}} // namespace kvtl::v0
