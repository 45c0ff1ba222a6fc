// Selector: adjacent layers share one choice. The first of `Layers` layers chooses as Selector does. The
// others attend the units with the same numbers, without scoring.
//
//   shared_by_layers<2, topk<reduce::softmax_sum>>     layers 0 and 1, 2 and 3, ... share
//
// What:   saves (Layers - 1) / Layers of the scoring. Every choice but the first is known one layer early:
//         prefetch() of a layer that shares reads exactly the units that its attend() will need.
// Cost:   none; the choice is the bit per unit that each lane keeps of its last step.
// Needs:  units that are runs of consecutive entries, so that a number means the same entries in each layer
//         (if the layers hold the same entries), and a choice that all queries share. Numbers that a layer
//         does not have, and units beyond its budget, are left out.
// Limits: only attend() shares. A further turn (prefill after decode) and select() choose for every layer.
// Source: MPCache (indices shared by adjacent layers): neighbouring layers choose similar units.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>

#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <std::uint32_t Layers, class Selector> struct shared_by_layers : Selector {
    static_assert(Layers >= 1, "[kvtl] selector: at least one layer has a choice of its own");
    static_assert(!Selector::takes_everything, "[kvtl] selector: there is no choice that layers could share");
    static constexpr std::string_view name = "shared_by_layers";
    static constexpr std::uint32_t layers_that_share = Layers;
};

}} // namespace kvtl::v0
