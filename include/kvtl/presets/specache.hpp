// SpeCache: keys of 2 bits in memory choose which entries are read in full precision, before the layer needs them.
//
// Paper: "SpeCache: Speculative Key-Value Caching for Efficient Generation of LLMs" (Jie et al. 2025). Composed here: single
// tokens, scored by keys of 2 bits in memory, and the best are read from storage in 16 bits. The choice is made for a predicted
// query, so reads begin while the layer before computes.
//
// Deviations:
//   - The paper decodes a speculative token beside the true one, and its choices are fetched for the next step. Here the
//     prediction is that of KVSwap and InfiniGen: the next layer's query, from this layer's input.
//   - Entries that are not chosen contribute nothing. The paper attends its copy of 2 bits instead, and so keeps the values
//     of 2 bits in memory, too.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_low_bit_keys.hpp>
#include <kvtl/policies/schedule_next_layer.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct specache : offloaded {
    static constexpr std::string_view name = "specache";
    using index = int2_keys;
    using selector = topk<reduce::softmax_sum, query::predicted>;
    using schedule = next_layer;
};

} // namespace presets

using specache = kv_manager<presets::specache>;

}} // namespace kvtl::v0
