// What placing, splitting and clustering need while they work, in memory that a step's sums have at other times.
//
// Shapes: width: numbers of a row; split_rows: rows().
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/grow/unit_rows.hpp>
#include <kvtl/policies/support/halve.hpp>
#include <kvtl/slots/clusterer.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> struct growth_scratch {
    using clusterer = typename Types::clusterer;
    /// The clusterer lets entries wait in the window until it can make several units of them at once.
    static constexpr bool batches = Types::batches;
    /// The index names the units that an entry may join.
    static constexpr bool among_few =
        detail::narrows_units<typename Types::index>() && detail::assigns_among_some<clusterer>();

    static constexpr std::uint32_t some_rows = 16; ///< decoded at once
    std::span<float> key, mean;                    ///< (width)
    std::span<float> distance;                     ///< (max_units)
    std::span<float> spread;                       ///< (width) of the lane, before a batch joins it
    record_rows<Types> entries;                    ///< (split_rows) of a split or a batch
    std::span<std::byte> record;                   ///< of the entry on its way to its page
    std::span<std::uint8_t> side;                  ///< (split_rows)
    std::span<std::byte> halve;      ///< halve_scratch_bytes(split_rows, width), or for clustering a batch
    std::span<std::uint32_t> label;  ///< (spare) units of a batch
    std::span<std::uint32_t> frames; ///< (frames of both children)
    row_tile<Types> tile;            ///< stored rows on their way to sums
    narrowing few;                   ///< for an index that narrows

    /// Rows of the largest split: a full unit, everything buffered and the new entry, but never more than
    /// two units. Or those of a batch.
    [[nodiscard]] static std::uint32_t rows(const lane_sizes& s, std::uint32_t max_entries) noexcept {
        return std::max(std::min(max_entries + s.buffer + 1, 2 * max_entries), batches ? s.spare : 0);
    }
    static growth_scratch take(carver& c, const lane_sizes& s, std::uint32_t max_entries,
                               std::uint32_t page_rows) noexcept {
        const std::uint32_t n = rows(s, max_entries);
        growth_scratch out;
        out.key = c.take<float>(s.width);
        out.mean = c.take<float>(clusterer::clusters_prompt ? s.width : 0);
        out.distance = c.take<float>(s.max_units);
        out.spread = c.take<float>(batches && s.spread ? s.width : 0);
        out.entries = record_rows<Types>::take(c, n, s.width, s.record);
        out.record = c.take<std::byte>(record_scratch<Types>(s.record));
        out.side = c.take<std::uint8_t>(n);
        out.halve = c.take<std::byte>(clusterer::adapts ? halve_scratch_bytes(n, s.width) : s.batch_scratch);
        out.label = c.take<std::uint32_t>(batches ? s.spare : 0);
        out.frames = c.take<std::uint32_t>(n / page_rows + 2);
        out.tile = row_tile<Types>::take(c, some_rows, s.width);
        if constexpr (among_few) out.few = narrowing::take(c, s.max_units, s.width);
        return out;
    }
};

}} // namespace kvtl::v0
