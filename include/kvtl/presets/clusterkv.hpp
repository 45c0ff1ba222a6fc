// ClusterKV: clusters by the cosine of keys, which are read whole. Every query head chooses for itself.
//
// Paper: "ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable Compression". Keys after
// RoPE, without the first 16 tokens, are clustered into N / 80 clusters. During decode each full window of
// 320 entries becomes 8 new clusters. Clusters are scored by q . mean and taken in order of their score. The
// last cluster is truncated to the budget.
//
// Decided by measurement (bench/results), as for dynakv: 16 tokens per cluster, 4 sinks, and 40 clusters
// per window of 320. The paper's numbers fit budgets of a thousand entries. With budgets of 64 to 256 entries
// its clusters fill the budget, its sinks take a quarter of it, and a batch of decoded entries is one cluster
// of consecutive tokens. With 8 tokens per cluster more needles are found, but twice the bytes are read (half
// a page per cluster).
//
// Deviations:
//   - A prompt is clustered 8,192 entries at a time.
//   - Clusters beyond twice tokens_per_cluster are split, because storage bounds them.
//   - Pending entries are attended. So at most a quarter of attend_tokens may be pending, and the 32 latest
//     entries never leave the window.
//   - The first two layers are treated like all others.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/policies/cluster_kmeans_windowed.hpp>
#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct clusterkv : full {
    static constexpr std::string_view name = "clusterkv";
    static constexpr std::uint32_t window_tokens = 32;
    static constexpr std::uint32_t sink_tokens = 4;
    using clusterer = kmeans_windowed<window_plan{
        .tokens_per_cluster = 16, .segment = 8192, .window = 320, .window_clusters = 40, .centred = false}>;
    using index = centroid;
    using selector = topk<reduce::none, query::current, overshoot::cut_off>;
    using layout = unit_contiguous;
    using io = default_file;

    /// Larger clusters, never above 320 tokens.
    template <class Config> static bool shrink(Config& c) noexcept { return c.clusterer.coarsen(320); }
};

} // namespace presets

using clusterkv = kv_manager<presets::clusterkv>;

}} // namespace kvtl::v0
