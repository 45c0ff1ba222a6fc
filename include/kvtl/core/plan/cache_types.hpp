// From a preset and a geometry to the concrete types of a cache.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/frame_pool.hpp>
#include <kvtl/core/store/lane.hpp>
#include <kvtl/core/store/page_format.hpp>
#include <kvtl/core/store/transfers.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/slots/preset.hpp>

#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

/// All lanes of a cache: numbered (slot * layers + layer) * lanes per layer + lane.
template <class Lane> struct lane_table {
    std::byte* blocks = nullptr;
    lane_sizes sizes;
    typename Lane::offsets offsets;
    std::uint32_t lanes_per_slot = 0;
    std::uint32_t lanes_per_layer = 0;

    [[nodiscard]] Lane at(std::uint32_t id) const noexcept {
        return {blocks + std::size_t{id} * offsets.bytes, sizes, offsets};
    }
    [[nodiscard]] std::uint32_t slot_of(std::uint32_t id) const noexcept { return id / lanes_per_slot; }
    [[nodiscard]] std::uint32_t layer_of(std::uint32_t id) const noexcept {
        return id % lanes_per_slot / lanes_per_layer;
    }
    [[nodiscard]] std::uint32_t in_layer(std::uint32_t id) const noexcept { return id % lanes_per_layer; }
};

template <class Remainder> [[nodiscard]] consteval bool remainder_needs_means() {
    if constexpr (requires { Remainder::needs_means; })
        return Remainder::needs_means;
    else
        return false;
}

template <class Preset, class Geometry> struct cache_types {
    using geometry = Geometry;
    using compressor = typename Preset::compressor;
    using element_type = typename compressor::element_type;
    using clusterer = typename Preset::clusterer;
    using clusterer_state = typename clusterer::template state<Geometry>;
    using index = typename Preset::index;
    using index_state = typename index::template state<Geometry>;
    using selector = typename Preset::selector;
    using selector_state = typename selector::template state<Geometry>;
    using remainder = typename Preset::remainder;
    using remainder_state = typename remainder::template state<Geometry>;
    using layout = typename Preset::layout;
    using layout_state = typename layout::template state<Geometry>;
    using io = typename Preset::io;
    using device = typename io::device;
    using queue = std::remove_reference_t<decltype(std::declval<device&>().queue(0U))>;

    struct replacement {
        using config_type = typename Preset::replacement::config;
        using state_type = typename Preset::replacement::template state<Geometry>;
    };
    using pool = frame_pool<replacement>;
    using transfers = kvtl::transfers<queue, pool>;
    /// Units are runs of consecutive entries: they need no records beyond residency (group_store.hpp).
    static constexpr bool sequential = store_of_preset<Preset>() == store_kind::groups;
    using unit_type = std::conditional_t<sequential, group_record, unit_record>;
    using lane = lane_view<element_type, typename clusterer::lane, unit_type>;
    using lane_table = kvtl::lane_table<lane>;

    /// Storage holds values only: the index has the keys, or rebuilds them.
    static constexpr bool values_only = sequential && requires { requires index::rebuilds_keys; };
    /// Keys and values have pages of their own: the index scores with keys that are read at every step.
    static constexpr bool split_pages = sequential && detail::streams_keys<index>();
    /// Pages that hold `rows` entries: one, or one of keys and one of values.
    static constexpr std::uint32_t fields = split_pages ? 2 : 1;
    [[nodiscard]] static constexpr page_format<element_type> page_format_of(std::uint32_t device_page,
                                                                            std::uint32_t width) noexcept {
        if (split_pages) return page_format<element_type>::split(device_page, width);
        return values_only ? page_format<element_type>::values_only(device_page, width)
                           : page_format<element_type>::make(device_page, width);
    }
    /// Fixed groups: how one lies in its slot.
    [[nodiscard]] static constexpr page_format<element_type> slot_format_of(std::uint32_t width,
                                                                            std::uint32_t group) noexcept {
        return page_format<element_type>::packed(width, group);
    }

    /// What a step has read does not outlive it.
    static constexpr bool keeps_nothing = requires { requires Preset::replacement::keeps_nothing; };
    /// Units have means because a policy reads them.
    static constexpr bool means =
        clusterer::needs_means || index::needs_means || remainder_needs_means<remainder>();
    static constexpr granularity unit_of = clusterer::unit_of;
};

}} // namespace kvtl::v0
