// InfiniGen: single tokens whose scores are speculated one layer ahead from a part of their (skewed) key
// channels.
//
// Paper: "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache
// Management" (§4): queries and keys are rotated by a basis from an offline SVD, partial keys stay in memory,
// tokens whose speculated score is within alpha of the best are fetched. Extended to storage as KVSwap's
// authors did for their comparison: InfiniGen* reads and chooses a token of all heads at once, "+ru" adds
// KVSwap's FIFO buffer.
//
// KVSwap's paper gives InfiniGen* its own aggregation of heads, its code a fixed number of tokens without alpha.
// Decided by measurement: every query head's scores are soft-maxed before they are summed (topk<softmax_sum>), as in
// kvswap_softmax. Sums of raw logits, with alpha on their mean, find .72 and .92 of the embedded model's needles at 64
// and 128 attended entries, this 1.00 and 1.00 (bench/RESULTS.md): few heads look for the needle, and those that are
// sure of nothing outvote them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_rotated_channels.hpp>
#include <kvtl/policies/replace_fifo_by_lane.hpp>
#include <kvtl/policies/select_max_minus_alpha.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Single tokens of single heads, speculated a layer ahead; nothing is kept between steps.
struct infinigen : offloaded {
    static constexpr std::string_view name = "infinigen";
    using index = skewed_channels;
    using selector = max_minus_alpha<reduce::group_mean, query::predicted>;
    using replacement = no_caching;
    using schedule = next_layer;

    /// Fewer columns of the partial keys, never below 4.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.channels <= 4) return false;
        c.index.channels = c.index.channels > c.shape.head_dim ? c.shape.head_dim : c.index.channels / 2;
        return true;
    }
};

/// InfiniGen with a token's entries of all heads read, and chosen, together.
struct infinigen_star : infinigen {
    static constexpr std::string_view name = "infinigen_star";
    using clusterer = layer_groups<1>;
    using selector = topk<reduce::softmax_sum, query::predicted>;
};

/// And with KVSwap's buffer of tokens used before.
struct infinigen_star_reuse : infinigen_star {
    static constexpr std::string_view name = "infinigen_star_reuse";
    using replacement = fifo_by_lane;
};

} // namespace presets

using infinigen = kv_manager<presets::infinigen, engine_inputs_for<presets::infinigen>>;
using infinigen_star = kv_manager<presets::infinigen_star, engine_inputs_for<presets::infinigen_star>>;
using infinigen_star_reuse =
    kv_manager<presets::infinigen_star_reuse, engine_inputs_for<presets::infinigen_star_reuse>>;

}} // namespace kvtl::v0
