// Schedule: while a layer computes, what the next one keeps resident is read back from storage, and what the layer
// before kept is given up (DynaKV §6.1, pipeline 2). Frames of two layers have memory, whatever the number of
// layers; each layer has as many frames as the two arenas hold.
//
// What:   nothing is chosen ahead: a layer's cache is what its replacement policy made of it, as if it had never
//         left. Misses are read on demand, and go to the device before the next layer's hot set does. The bits of
//         the output are those of `on_demand` with as many frames for each layer.
// Needs:  units of whole pages (a clusterer with a layout that places units). The engine says before_query(layer);
//         one that does not, and takes layers in order, loses no more than the polling in between.
// Cost:   reads as many bytes per layer and step as the layer keeps resident, behind compute if the device can.
// Memory: 2 x frames of a layer, and the unfinished pages (tail_frames) of each.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/schedule.hpp>

#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct layer_virtualised {
    static constexpr std::string_view name = "layer_virtualised";
    static constexpr bool virtualises = true;
    static constexpr std::uint32_t hot_steps = 4;
};

}} // namespace kvtl::v0
