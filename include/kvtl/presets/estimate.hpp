// dynakv_estimate: DynaKV's adaptive clusters, and for clusters that are not read an estimate of what they
// would have contributed. No paper has this combination.
//
// RetroInfer estimates clusters that never change; DynaKV's clusters split where keys spread, but what it
// does not read is lost. Together each makes the other cheaper: tight clusters are estimated well, and what
// is estimated well need not be read. Different from dynakv:
//
//   estimator  centroid_estimate_spread: mean value, mean key, count, and the gain from the spread of the
//              keys, which needs the variance that the clusterer keeps anyway, and D numbers per lane
//   index      centroid_spread instead of centroid: what an estimate misses grows with the spread of the keys
//   selector   softmax_sum instead of group_mean: what is left out now costs in proportion to its mass, so
//              units are ranked by mass
//   clusterer  lanes are clustered from 128 entries on (dynakv: 512), as mere stretches of text are estimated
//              badly; at most 4 entries wait for their cluster (dynakv: 16), as those are attended and leave
//              less to choose
//   layout     unit_contiguous instead of dual_head, whose pools reach 2.5 times the raw cache, where adding
//              clusters ends, with 114 clusters per lane instead of 143; more bytes move when clusters grow
//
// What the index adds: needles of 2,048 tokens found at 64 attended entries rise from 11 to 17 of 20, the
// divergence of their next-token distributions falls from .165 to .079, at 128 from .041 to .025 (`kvtl-eval
// --policies dynakv_estimate --attend-tokens 64,128 --memory-mib 5.5 --task needle:FILE --limit 20`); half of
// its gain gives 15 of 20, ranking by the mass of whole units 14.
//
// Mean output error on the embedded model, still with the plain centroid (three texts, recorded and replayed:
// prompt of 256, decode to 1,400) at 64 / 96 / 128 / 256 attended entries:
//
//   dynakv                                    .220 / .160 / .129 / .066
//   dynakv_estimate                           .079 / .053 / .041 / .019
//   16 entries may wait                       .088 / .054 / .041 / .019
//   16 may wait, dual_head                    .096 / .061 / .047 / .022
//     group_mean                              .095 / .066 / .051 / .026
//     first order only (centroid_estimate)    .113 / .074 / .057 / .026
//     32 tokens per cluster                   .119 / .081 / .063 / .028
//   8 tokens per cluster                      .062 / .042 / .032 / .015
//   threshold_scale 0.8                       .083 / .056 / .042 / .019
//   the best entries by true attention        .135 / .102 / .084 / .045
//
// Index: 2 D + 8 bytes per unit (mean key and mean value, each as codes with a scale), 4 D per lane.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/policies/index_centroid_spread.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/dynakv.hpp>

namespace kvtl { inline namespace v0 {

/// variance_split that begins earlier and lets less wait.
struct early_variance_split : variance_split {
    struct config {
        std::uint32_t tokens_per_cluster = variance_split::config{}.tokens_per_cluster;
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

namespace presets {

struct dynakv_estimate : dynakv {
    static constexpr std::string_view name = "dynakv_estimate";
    using clusterer = early_variance_split;
    using index = centroid_spread;
    using selector = topk<reduce::softmax_sum>;
    using estimator = centroid_estimate_spread;
    using layout = unit_contiguous;
};

} // namespace presets

using dynakv_estimate = kv_manager<presets::dynakv_estimate>;

}} // namespace kvtl::v0
