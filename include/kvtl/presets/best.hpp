// kvtl_best: the most quality per byte read. No paper has this combination.
//
// It is based on dynakv_estimate. Differences:
//
//   estimator   moment_estimate: also corrects the values of clusters that are not read, and computes the expected
//               error of each estimate
//   selector    error_price: attends the clusters whose estimates are expected to err most. An expected error is
//               compared with a cost, at one price for all heads and layers. A cluster in memory costs a
//               twentieth of its entries. A cluster that has to be read costs its whole pages. attend_tokens is
//               a mean, not a limit of each head
//   compressor  int8_row: half the bytes of an entry
//   clusterer   12 tokens per cluster (dynakv_estimate: 16): small clusters are estimated better, but they fill
//               less of their pages and need a larger index
//   layout      unit_contiguous_whole_file: a small cluster takes a whole page, so the file may exceed 2.5 times
//               the raw cache
//
// Index: 2 D + 8 bytes per cluster, 2 D^2 + 8 D + 16 bytes per lane and head.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/policies/index_no_index.hpp>
#include <kvtl/policies/select_error_price.hpp>
#include <kvtl/presets/estimate.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct kvtl_best : dynakv_estimate {
    static constexpr std::string_view name = "kvtl_best";
    using clusterer = early_variance_split_of<12>;
    using index = no_index;
    using selector = error_price;
    using estimator = moment_estimate;
    using compressor = int8_row<>;
    using layout = unit_contiguous_whole_file;
};

} // namespace presets

using kvtl_best = kv_manager<presets::kvtl_best>;

}} // namespace kvtl::v0
