// Presets whose layers take turns in memory (schedule layer_virtualised). At most two layers have entries and
// representatives in memory at a time.
//
// Paper: "DynaKV: Enabling Accurate and Efficient Long-Sequence LLM Decoding on Smartphones" §6.1:
// representatives are streamed before the query is known, and clusters are streamed while the layer before
// computes. Deviations: the memory holds two layers, because one is read back while the other computes.
// Resident units that the layer's last step neither chose nor updated are evicted, not read back
// (schedule.hot_steps; bench/results compares 0 to 4).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/schedule_layer_virtualised.hpp>
#include <kvtl/presets/clusterkv.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/estimate.hpp>
#include <kvtl/presets/two_level.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct dynakv_virtualised : dynakv {
    static constexpr std::string_view name = "dynakv_virtualised";
    using schedule = layer_virtualised;
};
struct dynakv_estimate_virtualised : dynakv_estimate {
    static constexpr std::string_view name = "dynakv_estimate_virtualised";
    using schedule = layer_virtualised;
};
/// For contexts whose representatives do not fit in memory. The representatives of a layer are read from
/// storage before its query is known, and only those of the best blocks are scored.
struct dynakv_two_level_int8_virtualised : dynakv_two_level_int8 {
    static constexpr std::string_view name = "dynakv_two_level_int8_virtualised";
    using schedule = layer_virtualised;
};
struct clusterkv_virtualised : clusterkv {
    static constexpr std::string_view name = "clusterkv_virtualised";
    using schedule = layer_virtualised;
};

} // namespace presets

using dynakv_virtualised = kv_manager<presets::dynakv_virtualised>;
using dynakv_estimate_virtualised = kv_manager<presets::dynakv_estimate_virtualised>;
using dynakv_two_level_int8_virtualised = kv_manager<presets::dynakv_two_level_int8_virtualised>;
using clusterkv_virtualised = kv_manager<presets::clusterkv_virtualised>;

}} // namespace kvtl::v0
