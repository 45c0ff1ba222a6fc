// Schedule: while a layer computes, the resident units of the next layer are read back from storage, and
// those of the layer before are given up (DynaKV §6.1, pipeline 2). Frames of two layers have memory,
// whatever the number of layers. Each layer has as many frames as the two arenas hold.
//
// What:   nothing is chosen ahead. A layer's resident units are those that its replacement policy kept,
//         except units that its last hot_steps steps neither chose nor updated. These are given up, because
//         reading them at every step costs more than reading them on demand. (With hot_steps = none the
//         output has the bits of `on_demand` with as many frames for each layer.) A layer's own misses are
//         read on demand. When they have landed, the reads of the next layer's hot set are submitted, behind
//         the computation of the engine after attend(). Before the hot set come the next layer's means and
//         summaries, whose memory other layers use meanwhile. Pages of them that a layer's calls changed are
//         written when the cache turns to another layer.
// Needs:  units of whole pages (a clusterer with a layout that places units). The engine calls
//         before_query(layer). An engine that does not, but takes layers in order, loses only the polling in
//         between.
// Cost:   reads per layer and step: its representatives and the choices of the last hot_steps steps, behind
//         compute if the device is fast enough.
// Memory: 2 x frames and representatives of a layer, and the open pages (open_pages) of each layer.
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
