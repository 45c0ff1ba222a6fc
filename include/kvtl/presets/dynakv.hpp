// DynaKV: adaptive clusters on flash, and the presets that take one of its techniques away.
//
// Paper: "DynaKV: Enabling Accurate and Efficient Long-Sequence LLM Decoding on Smartphones". Composed here:
// prompt k-means with variance-triggered, delayed splits (§4, Algorithm 1), centroids scored by inner
// product, co-retrieved clusters placed side by side in dual-head pools (§5), cluster-aligned replacement
// (§6.2). Deviations: f16 instead of FP8 entries; centroids stay in DRAM and layers are read on demand
// (§6.1's second pipeline is a schedule of its own, presets/virtualised.hpp); the recent window and the sinks
// are always attended, which the paper does not say. Entries in token order and clusters strictly one
// behind the other, the baselines of its Figures 12 and 13, are replayed by kvtl-bench (`reuse`).
//
// tokens_per_cluster is 16: single needles of 1,024 tokens on the embedded model at 256 attended entries were
// found 45, 48 and 50 times of 50 with 32, 16 and 8 tokens per cluster (`kvtl-run --policy dynakv
// --attend-tokens 256 -n 6 --set dynakv.clusterer.tokens_per_cluster=N` over the 50 prompts), and 16 entries
// of 64 f16 numbers fill a page. Scores reduced over the query group by maximum instead of mean found 40 (at
// 32).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/layout/dual_head.hpp>
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/policies/cluster_kmeans_static.hpp>
#include <kvtl/policies/cluster_variance_split.hpp>
#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/replace_cluster_aligned.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

#include <algorithm>
#include <cstdint>

namespace kvtl { inline namespace v0 {

namespace presets {

struct dynakv : full {
    static constexpr std::string_view name = "dynakv";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using clusterer = variance_split;
    using index = centroid;
    using selector = topk<reduce::group_mean>;
    using layout = dual_head;
    using replacement = cluster_aligned;
    using io = default_file;

    /// Larger clusters, half as many centroids each time, up to 128 tokens and as long as a lane that is
    /// just clustered has two of the largest. (Centroids are as small as they get before: config.centroid_bits.)
    template <class Config>
    requires requires(Config& c) { c.clusterer.tokens_per_cluster, c.clusterer.min_entries_to_cluster; }
    static bool shrink(Config& c) noexcept {
        const std::uint32_t largest = std::min(128U, c.clusterer.min_entries_to_cluster / 2);
        if (c.clusterer.tokens_per_cluster > largest / 2) return false;
        c.clusterer.tokens_per_cluster *= 2;
        return true;
    }
};

/// Clusters never split: new entries go to the nearest prompt cluster (the paper's "static update").
struct dynakv_static : dynakv {
    static constexpr std::string_view name = "dynakv_static";
    using clusterer = kmeans_static;
};

/// One run of pages per cluster, moved when it grows.
struct dynakv_unit_contiguous : dynakv {
    static constexpr std::string_view name = "dynakv_unit_contiguous";
    using layout = unit_contiguous;
};

/// Plain least-recently-used replacement (baseline of Figure 14b).
struct dynakv_lru : dynakv {
    static constexpr std::string_view name = "dynakv_lru";
    using replacement = lru;
};

} // namespace presets

using dynakv = kv_manager<presets::dynakv>;
using dynakv_static = kv_manager<presets::dynakv_static>;
using dynakv_unit_contiguous = kv_manager<presets::dynakv_unit_contiguous>;
using dynakv_lru = kv_manager<presets::dynakv_lru>;

}} // namespace kvtl::v0
