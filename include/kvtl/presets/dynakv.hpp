// DynaKV: adaptive clusters on flash, and presets that leave out one of its techniques.
//
// Paper: "DynaKV: Enabling Accurate and Efficient Long-Sequence LLM Decoding on Smartphones". Composed here:
//   - k-means over the prompt, with delayed splits when the variance of a cluster is too large (§4,
//     Algorithm 1);
//   - centroids scored by inner product;
//   - clusters that are retrieved together placed side by side in dual-head pools (§5);
//   - cluster-aligned replacement (§6.2).
//
// Deviations:
//   - Entries are f16, not FP8 (`dynakv_fp8` has 8-bit floats, presets/int8.hpp).
//   - Centroids stay in DRAM, and layers are read on demand. The second pipeline of §6.1 is a separate
//     schedule (presets/virtualised.hpp).
//   - The recent window and the sinks are always attended; the paper does not mention them.
//
// kvtl-bench (`reuse`) replays the baselines of Figures 12 and 13: entries in token order, and clusters
// strictly one behind the other.
//
// tokens_per_cluster is 16, measured with single needles of 1,024 tokens, the embedded model and 256 attended
// entries. 16 entries of 64 f16 numbers fill a page.
//
//   tokens per cluster            32   16   8
//   needles found, of 50          45   48   50
//   with group maximum scores     40
//
// Command, over the 50 prompts: `kvtl-run --policy dynakv --attend-tokens 256 -n 6
// --set dynakv.clusterer.tokens_per_cluster=N`.
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

    /// Larger clusters: each call halves the number of centroids. The limits are 128 tokens, and half of the
    /// entries with which a lane is first clustered. (Centroids already have the fewest bits by default:
    /// config.centroid_bits.)
    template <class Config>
    requires requires(Config& c) { c.clusterer.tokens_per_cluster, c.clusterer.min_entries_to_cluster; }
    static bool shrink(Config& c) noexcept {
        const std::uint32_t largest = std::min(128U, c.clusterer.min_entries_to_cluster / 2);
        if (c.clusterer.tokens_per_cluster > largest / 2) return false;
        c.clusterer.tokens_per_cluster *= 2;
        return true;
    }
};

/// Clusters never split: new entries join the nearest cluster of the prompt (the paper's "static update").
struct dynakv_static : dynakv {
    static constexpr std::string_view name = "dynakv_static";
    using clusterer = kmeans_static;
};

/// Each cluster is one run of pages, which moves when it grows.
struct dynakv_unit_contiguous : dynakv {
    static constexpr std::string_view name = "dynakv_unit_contiguous";
    using layout = unit_contiguous;
};

/// Least-recently-used replacement (baseline of Figure 14b).
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
