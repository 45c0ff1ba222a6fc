// Which presets cannot show an engine keys and values to attend by itself, and why.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/chooser.hpp>
#include <kvtl/slots/estimator.hpp>

namespace kvtl { inline namespace v0 {

/// Why select() has nothing to show of a preset, or null.
template <class Types> [[nodiscard]] consteval const char* why_no_views() {
    if constexpr (Types::drops && !Types::hands_over) {
        if (Types::reads_mass) return "it evicts by attention mass, which only attend() sees";
        if (Types::position::moves) return "its keys change their positions";
        if (Types::retention::merges) return "its entries carry weights";
        if (Types::demotes) return "its entries are in two codecs";
        if (Types::score::per_query_head) return "every query head keeps entries of its own";
    } else if constexpr (Types::retrieves) {
        if (Types::weighted) return "its entries carry weights";
        if (engine_names_units<typename Types::selector>) return "the engine names its units, in attend()";
        if (chooser<Types>::unites) return "every head attends units of its own";
        if (estimates<typename Types::estimator>) return "estimates stand in for what it does not read";
    }
    return nullptr;
}

}} // namespace kvtl::v0
