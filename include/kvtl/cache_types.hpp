// From a preset and a geometry to the concrete types of a cache. SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/frame_pool.hpp>
#include <kvtl/lane.hpp>
#include <kvtl/signals.hpp>
#include <kvtl/transfers.hpp>

#include <type_traits>
#include <utility>

namespace kvtl::inline v0 {

/// All lanes of a cache: numbered (slot * layers + layer) * lanes per layer + lane.
template <class Lane> struct lane_table {
    std::byte* blocks = nullptr;
    lane_sizes sizes;
    typename Lane::offsets offsets;
    std::uint32_t lanes_per_slot = 0;

    [[nodiscard]] Lane at(std::uint32_t id) const noexcept {
        return {blocks + std::size_t{id} * offsets.bytes, sizes, offsets};
    }
    [[nodiscard]] std::uint32_t slot_of(std::uint32_t id) const noexcept { return id / lanes_per_slot; }
};

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
    using lane = lane_view<element_type, typename clusterer::lane>;
    using lane_table = kvtl::lane_table<lane>;

    /// Units have means because a policy reads them.
    static constexpr bool means = clusterer::needs_means || index::needs_means;
    static constexpr granularity unit_of = clusterer::unit_of;
};

} // namespace kvtl::inline v0
