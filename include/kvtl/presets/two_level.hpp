// Presets for very long contexts: DynaKV with a coarse level above its clusters (index two_level_centroid). A
// step then scores only some of the mean keys.
//
// The paper has no such level and scores all centroids (§4.1). With few clusters these presets choose exactly the
// clusters that dynakv chooses.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_two_level_centroid.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/int8.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct dynakv_two_level : dynakv {
    static constexpr std::string_view name = "dynakv_two_level";
    using index = two_level_centroid;
};
struct dynakv_two_level_int8 : dynakv_int8 {
    static constexpr std::string_view name = "dynakv_two_level_int8";
    using index = two_level_centroid;
};

} // namespace presets

using dynakv_two_level = kv_manager<presets::dynakv_two_level>;
using dynakv_two_level_int8 = kv_manager<presets::dynakv_two_level_int8>;

}} // namespace kvtl::v0
