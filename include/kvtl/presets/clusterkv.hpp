// ClusterKV: semantic clusters by the cosine of keys, recalled whole, every query head for itself.
//
// Paper: "ClusterKV: Manipulating LLM KV Cache in Semantic Space for Recallable Compression". Keys after RoPE
// without the first 16 tokens are clustered into N / 80 clusters; during decode each full window of 320
// entries becomes 8 new clusters. Clusters are scored by q . mean and taken in order, the last one as far as the
// budget goes.
//
// Decided by measurement (bench/RESULTS.md), as for dynakv: 16 tokens per cluster, 4 sinks, and 40 clusters of a
// window of 320. The paper's numbers are for budgets of a thousand entries; at 64 to 256 its clusters are the budget, its
// sinks a quarter of it, and a batch of decoded entries is one cluster of consecutive tokens. 8 tokens per cluster
// find more at twice the bytes read (half a page each).
//
// Deviations: a prompt is clustered 8,192 entries at a time; clusters beyond twice tokens_per_cluster are split, as
// storage bounds them; waiting entries are attended,
// so no more wait than a quarter of attend_tokens, and 32 recent ones never leave the window; the first two layers
// are treated like all others.
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
