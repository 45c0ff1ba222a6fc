// InfiniGen: single tokens. Their scores are predicted one layer ahead, from some channels of their rotated
// ("skewed") keys.
//
// Paper: "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache
// Management" (§4). Queries and keys are rotated by a basis from an offline SVD, and partial keys stay in
// memory. Tokens whose speculated score is within alpha of the best are fetched. The extension to storage
// follows KVSwap's authors, who made it for their comparison: InfiniGen* reads and chooses a token of all
// heads at once, and "+ru" adds KVSwap's FIFO buffer.
//
// For InfiniGen*, KVSwap's paper uses its own aggregation of heads; KVSwap's code uses a fixed number of
// tokens without alpha. Decided by measurement (bench/results): a softmax is applied to the scores of each query
// head before they are summed (topk<softmax_sum>), as in kvswap_softmax. Few heads look for the needle. In sums
// of raw logits, heads with flat scores outvote them. Share of needles that the embedded model finds:
//
//   attended entries                     64     128
//   sums of raw logits, alpha on mean    0.72   0.92
//   sums after softmax                   1.00   1.00
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_rotated_channels.hpp>
#include <kvtl/policies/replace_fifo_by_lane.hpp>
#include <kvtl/policies/select_max_minus_alpha.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Single tokens of single heads, speculated one layer ahead. No unit stays resident between steps.
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

/// InfiniGen that chooses and reads the entries of a token for all heads together.
struct infinigen_star : infinigen {
    static constexpr std::string_view name = "infinigen_star";
    using clusterer = layer_groups<1>;
    using selector = topk<reduce::softmax_sum, query::predicted>;
};

/// The same with KVSwap's buffer of recently used tokens.
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
