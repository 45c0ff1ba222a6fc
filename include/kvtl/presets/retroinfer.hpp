// RetroInfer: three zones. The steady zone (4 sinks, 64 recent entries) is always attended. The best clusters
// are retrieved. The next best 23.2 % are estimated from mean key, mean value and count. All other clusters
// are left out.
//
// Paper: "RetroInfer: A Vector-Storage Approach for Scalable Long-Context LLM Inference". Prompt segments of
// 8,192 entries are clustered into 1/16 as many clusters, by ten iterations of k-means on directions from the
// segment's mean. Decoded entries wait in the window and are clustered 1,024 at a time.
//
// Deviations:
//   - attend_tokens determines how much is retrieved (the paper: 1.8 % of the clusters).
//   - Pending entries are attended, so at most a quarter of attend_tokens may be pending.
//   - Centroids of the k-means are not scaled back to length 1.
//   - The estimate takes the best share of all clusters by the mean query of the group.
//   - Frames and LRU work by cluster, not by 8 vectors.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/policies/cluster_kmeans_windowed.hpp>
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct retroinfer : full {
    static constexpr std::string_view name = "retroinfer";
    static constexpr std::uint32_t window_tokens = 64;
    static constexpr std::uint32_t sink_tokens = 4;
    using clusterer = kmeans_windowed<window_plan{
        .tokens_per_cluster = 16, .segment = 8192, .window = 1024, .window_clusters = 64, .centred = true}>;
    using index = centroid;
    using selector = topk<reduce::softmax_sum>;
    using estimator = best_centroid_estimate<232>;
    using layout = unit_contiguous;
    using io = default_file;

    /// Larger clusters, never above 128 tokens.
    template <class Config> static bool shrink(Config& c) noexcept { return c.clusterer.coarsen(128); }
};

} // namespace presets

using retroinfer = kv_manager<presets::retroinfer>;

}} // namespace kvtl::v0
