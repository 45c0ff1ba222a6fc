// Squeezed Attention: k-means clusters of a fixed prefix, and all entries of those clusters that promise more
// than a fixed share of the attention.
//
// Paper: "Squeezed Attention: Accelerating Long Context Length LLM Inference". Deviations: one level of
// clusters instead of a hierarchy; the threshold is given, not calibrated on the prefix's last queries so that a wanted
// number of keys passes on average, as attend_tokens bounds what passes for every query: under that bound a threshold
// that lets fewer pass can only lose; decoded entries join the nearest cluster as DynaKV's "static update"
// does, where the paper attends all of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_threshold.hpp>
#include <kvtl/presets/dynakv.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct squeezed : dynakv_static {
    static constexpr std::string_view name = "squeezed";
    using selector = threshold<reduce::group_mean>;
    using layout = unit_contiguous;
    using replacement = lru;
};

} // namespace presets

template <class Geometry> using squeezed = kv_manager<presets::squeezed, Geometry>;

}} // namespace kvtl::v0
