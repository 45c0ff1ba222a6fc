// What step_choice, step_attention and step_runner read of a shard.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/grow/group_growth.hpp>
#include <kvtl/core/grow/unit_growth.hpp>
#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/step/sequence_bars.hpp>

#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

template <class Types>
using store_of = std::conditional_t<Types::sequential, group_store<Types>, unit_store<Types>>;
template <class Types>
using growth_of = std::conditional_t<Types::sequential, group_growth<Types>, unit_growth<Types>>;

template <class Types> struct step_parts {
    model_extents model;
    lane_sizes sizes;
    std::uint32_t chosen_per_lane = 0;
    std::uint32_t batch_items = 0;
    std::uint32_t turn_tokens = 0;
    std::size_t stretch_bytes = 0;
    std::uint32_t max_entries = 1;
    std::uint32_t true_layers = 0; ///< layers that choose by their own query whatever was predicted
    std::size_t estimator_floats = 0;
    growth_of<Types>* growth = nullptr;
    chooser<Types>* choose = nullptr;
    const sequence_bars<Types>* bars = nullptr;
    const summaries<Types>* sums = nullptr;
    const typename Types::estimator_state* rest = nullptr;
    phase_clock* clock = nullptr;
    row_tile<Types> decoded; ///< scratch: stored entries as rows
    std::span<float> query;  ///< (HQ, D) scratch: queries that come in 16 bits
};

}} // namespace kvtl::v0
