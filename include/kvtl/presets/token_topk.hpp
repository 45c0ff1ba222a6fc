// Reference lines of retrieval: token top-k by exact scores, the oracle, and random units.
//
//   no_cluster           DynaKV's baseline (Table 1). Every token is a unit, scores are inner products of the
//                        group's mean query with exact keys, and entries lie in token order. Keys stay in
//                        memory and storage holds the values, so memory_bytes must hold half of the cache.
//   no_cluster_streamed  the same choice for less memory: every step reads all keys from storage, in long
//                        runs.
//   oracle               chooses by true attention: the softmax of every query head over the same keys,
//                        summed over the group. No policy that attends as many tokens for a whole group
//                        captures more mass.
//   random_units         chooses at random. Every other policy should find more.
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
/// The name random_units belongs to its selector.
using random_units_cache = kv_manager<presets::random_units>;

}} // namespace kvtl::v0
