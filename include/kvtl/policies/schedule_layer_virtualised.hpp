// Schedule: while a layer computes, what the next one keeps resident is read back from storage, and what the layer
// before kept is given up (DynaKV §6.1, pipeline 2). Frames of two layers have memory, whatever the number of
// layers; each layer has as many frames as the two arenas hold.
//
// What:   nothing is chosen ahead: a layer's cache is what its replacement policy made of it, as if it had never
//         left, but for units that its last hot_steps steps neither chose nor updated: those are given up, as reading
//         them at each step costs more than reading them when they are asked for. (With hot_steps = none the bits of
//         the output are those of `on_demand` with as many frames for each layer.) A layer's own misses are read on
//         demand; the next layer's hot set goes to the device when they have landed, behind what the engine computes
//         after attend(). Before it goes what the next layer knows of its units, means and summaries, which others have
//         the memory of meanwhile; pages of it that a layer's calls have changed are written when another layer is turned to.
// Needs:  units of whole pages (a clusterer with a layout that places units). The engine says before_query(layer);
//         one that does not, and takes layers in order, loses no more than the polling in between.
// Cost:   reads per layer and step its representatives and what the last hot_steps steps chose, behind compute if the
//         device can.
// Memory: 2 x frames and representatives of a layer, and the unfinished pages (open_pages) of each.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/schedule.hpp>

#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct layer_virtualised {
    static constexpr std::string_view name = "layer_virtualised";
    static constexpr bool virtualises = true;

    struct config {
        std::uint32_t hot_steps = 1; ///< what the last so many steps of a layer used comes back; `none`: all
        template <class Visit> void fields(Visit&& visit) { visit("hot_steps", hot_steps); }
    };
};

}} // namespace kvtl::v0
