// dynakv_estimate: the adaptive clusters of DynaKV, and an estimate of the contribution of clusters that are
// not read. No paper has this combination.
//
// RetroInfer estimates clusters that never change. DynaKV splits clusters whose keys spread, and loses the
// contribution of clusters that it does not read. The combination helps each part: tight clusters are
// estimated well, and well-estimated clusters need not be read. Differences from dynakv:
//
//   estimator  centroid_estimate_spread: mean value, mean key, count, and a correction for the spread of the
//              keys. The correction needs the variance, which the clusterer has already, and D numbers per lane
//   index      centroid_spread instead of centroid: the error of an estimate grows with the spread of the
//              keys
//   selector   softmax_sum instead of group_mean: the cost of an unread unit is proportional to its mass, so
//              units are ranked by mass
//   clusterer  lanes are clustered from 128 entries on (dynakv: 512), because stretches of text are estimated
//              badly. At most 4 entries wait for their cluster (dynakv: 16), because pending entries are
//              attended and reduce the number of chosen ones
//   layout     unit_contiguous instead of dual_head. A file takes no more clusters when it has reached 2.5
//              times the raw cache. With dual_head this happens at 114 clusters per lane; unit_contiguous has room
//              for all 143. The price: more bytes move when clusters grow
//
// Effect of the index (`kvtl-eval --policies dynakv_estimate --attend-tokens 64,128 --memory-mib 5.5 --task
// needle:FILE --limit 20`; needles of 2,048 tokens; KL is the divergence of their next-token distributions):
//
//                                             centroid   centroid_spread
//   needles found of 20, 64 attended entries  11         17
//   KL, 64 attended entries                   0.165      0.079
//   KL, 128 attended entries                  0.041      0.025
//
// With half of the spread correction in its scores, the index finds 15 needles. With scores that rank units by
// their whole mass it finds 14.
//
// Mean output error on the embedded model, with the plain centroid index (three texts, recorded and replayed:
// prompt of 256, decode to 1,400), at 64 / 96 / 128 / 256 attended entries:
//
//   dynakv                                    0.220 / 0.160 / 0.129 / 0.066
//   dynakv_estimate                           0.079 / 0.053 / 0.041 / 0.019
//   16 pending entries                        0.088 / 0.054 / 0.041 / 0.019
//   16 pending entries, dual_head             0.096 / 0.061 / 0.047 / 0.022
//     group_mean                              0.095 / 0.066 / 0.051 / 0.026
//     first order only (centroid_estimate)    0.113 / 0.074 / 0.057 / 0.026
//     32 tokens per cluster                   0.119 / 0.081 / 0.063 / 0.028
//   8 tokens per cluster                      0.062 / 0.042 / 0.032 / 0.015
//   threshold_scale 0.8                       0.083 / 0.056 / 0.042 / 0.019
//   the best entries by true attention        0.135 / 0.102 / 0.084 / 0.045
//
// Index: 2 D + 8 bytes per unit (mean key and mean value, each as codes with a scale), 4 D bytes per lane.
//
// dynakv_top_p: as dynakv_estimate, but clusters are chosen until they hold a share of the attention, and
// attend_tokens is only a bound. The remaining clusters are estimated. This is Double-P's rule for clusters.
// Double-P also chooses tokens within clusters; this preset does not.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/policies/index_centroid_spread.hpp>
#include <kvtl/policies/select_top_p.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/dynakv.hpp>

namespace kvtl { inline namespace v0 {

/// variance_split that clusters lanes earlier and has fewer pending entries.
template <std::uint32_t TokensPerCluster> struct early_variance_split_of : variance_split {
    struct config {
        std::uint32_t tokens_per_cluster = TokensPerCluster;
        float threshold_scale = variance_split::config{}.threshold_scale;
        std::uint32_t pending_entries = 4;
        std::uint32_t min_entries_to_cluster = 128;
        std::uint32_t segment = variance_split::config{}.segment;
        std::uint64_t seed = variance_split::config{}.seed;
        template <class Visit> void fields(Visit&& visit) {
            visit("tokens_per_cluster", tokens_per_cluster);
            visit("threshold_scale", threshold_scale);
            visit("pending_entries", pending_entries);
            visit("min_entries_to_cluster", min_entries_to_cluster);
            visit("segment", segment);
            visit("seed", seed);
        }
        [[nodiscard]] operator variance_split::config() const noexcept {
            return {tokens_per_cluster,     threshold_scale, pending_entries,
                    min_entries_to_cluster, segment,         seed};
        }
    };
    class state : public variance_split::state {
      public:
        state() = default;
        state(const config& c, const geometry& g) noexcept : variance_split::state(c, g) {}
    };
};
using early_variance_split = early_variance_split_of<variance_split::config{}.tokens_per_cluster>;

namespace presets {

struct dynakv_estimate : dynakv {
    static constexpr std::string_view name = "dynakv_estimate";
    using clusterer = early_variance_split;
    using index = centroid_spread;
    using selector = topk<reduce::softmax_sum>;
    using estimator = centroid_estimate_spread;
    using layout = unit_contiguous;
};

struct dynakv_top_p : dynakv_estimate {
    static constexpr std::string_view name = "dynakv_top_p";
    using selector = top_p<reduce::softmax_sum>;
};

} // namespace presets

using dynakv_estimate = kv_manager<presets::dynakv_estimate>;
using dynakv_top_p = kv_manager<presets::dynakv_top_p>;

}} // namespace kvtl::v0
