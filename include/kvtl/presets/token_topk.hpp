// Reference lines of retrieval: token top-k by exact scores, the oracle, and random units.
//
// no_cluster is DynaKV's baseline (Table 1): every token is a unit, scores are inner products of the mean
// query of the group with exact keys, entries lie in token order. Keys stay in memory, storage holds the
// values, so the bound must hold half of the cache. Where it cannot, no_cluster_streamed makes the same
// choice with keys that it reads from storage at every step, all of them, in long runs. oracle chooses by
// true attention: every query head's softmax over the same keys, summed over the group; no policy that
// attends as many tokens for a whole group does better by mass. random_units chooses blindly: what a policy
// must beat.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_keys_in_memory.hpp>
#include <kvtl/policies/index_stored_keys.hpp>
#include <kvtl/policies/select_random_units.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct no_cluster : offloaded {
    static constexpr std::string_view name = "no_cluster";
    using index = stored_keys;
    using compressor = keys_in_memory<offloaded::compressor>;
    using selector = topk<reduce::group_mean>;
};

struct no_cluster_streamed : no_cluster {
    static constexpr std::string_view name = "no_cluster_streamed";
    using compressor = offloaded::compressor;
};

struct oracle : no_cluster {
    static constexpr std::string_view name = "oracle";
    using selector = topk<reduce::softmax_sum>;
};

struct random_units : offloaded {
    static constexpr std::string_view name = "random_units";
    using clusterer = head_groups<16>;
    using selector = kvtl::random_units;
};

} // namespace presets

using no_cluster = kv_manager<presets::no_cluster>;
using no_cluster_streamed = kv_manager<presets::no_cluster_streamed>;
using oracle = kv_manager<presets::oracle>;
/// Not random_units, which is its selector.
using random_units_cache = kv_manager<presets::random_units>;

}} // namespace kvtl::v0
