// Chelsea: similar keys within short chunks form clusters, and a cluster is attended as one entry: mean key, mean
// value, count.
//
// Paper: "Efficient Long-Context LLM Inference via KV Cache Clustering" (Hu et al. 2025). It drops the entries of
// a cluster once they are merged, and keeps a fifth of the cache.
//
// Deviations:
//   - Entries stay on storage. The part of attend_tokens that sinks and window leave is used to read the clusters
//     with the largest mass. To read no clusters, as in the paper, set attend_tokens to sink_tokens + window_tokens.
//   - 8 tokens per cluster, chunks of 64 (the paper's numbers were not at hand).
//   - Decoded entries become clusters up to 64 at a time. Until then they are attended.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/default_file.hpp>
#include <kvtl/layout/unit_contiguous.hpp>
#include <kvtl/policies/cluster_chunk_matching.hpp>
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/policies/index_centroid.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/full.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct chelsea : full {
    static constexpr std::string_view name = "chelsea";
    static constexpr std::uint32_t window_tokens = 64;
    static constexpr std::uint32_t sink_tokens = 4;
    using clusterer = chunk_matching;
    using index = centroid;
    using selector = topk<reduce::softmax_sum>;
    using estimator = centroid_estimate;
    using layout = unit_contiguous;
    using io = default_file;

    /// Larger clusters, never above 128 tokens.
    template <class Config> static bool shrink(Config& c) noexcept { return c.clusterer.coarsen(128); }
};

} // namespace presets

using chelsea = kv_manager<presets::chelsea>;

}} // namespace kvtl::v0
