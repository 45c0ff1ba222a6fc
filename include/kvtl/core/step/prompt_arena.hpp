// What a segment of a prompt needs while it is organised, laid out in the memory of a pool's frames.
//
// Shapes: rows: tokens of the segment; units: as many as they may fall into.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/chooser.hpp>
#include <kvtl/core/store/lane.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/layout/co_retrieval.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/causal.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Types> struct prompt_arena {
    /// Last queries of the prompt that tell what is co-retrieved.
    static constexpr std::uint32_t probe_queries = 32;
    record_rows<Types> rows;
    std::span<std::uint32_t> label, order; ///< (rows)
    std::span<std::uint32_t> begin;        ///< (units + 1)
    std::span<unit_record> old_unit;
    std::span<unit_extent> old_extent;
    std::span<std::uint32_t> pages; ///< (units) ragged records
    std::span<std::byte> cluster;   ///< the clusterer's scratch; before it, the codec's that fits the lane
    std::size_t work_begins = 0;    ///< bytes before these
    std::span<std::uint32_t> chain, strength;
    std::span<chosen_unit> chosen;
    std::span<std::byte> pairs;
    std::span<float> causal;           ///< before these: of attention
    std::span<float> log_weight;       ///< (rows) where entries have them
    std::span<std::uint32_t> position; ///< (rows) where they are not the rows' numbers

    static prompt_arena take(carver& c, const model_extents& m, const lane_sizes& s, std::uint32_t rows,
                             const typename Types::clusterer_state& cluster) noexcept {
        prompt_arena a;
        const std::uint32_t units = std::min(s.max_units, cluster.max_units(rows));
        a.rows = record_rows<Types>::take(c, rows, s.width, s.record);
        a.log_weight = c.take<float>(Types::weighted ? rows : 0);
        a.position = c.take<std::uint32_t>(Types::keeps_positions ? rows : 0);
        a.label = c.take<std::uint32_t>(rows);
        a.order = c.take<std::uint32_t>(rows);
        a.begin = c.take<std::uint32_t>(units + 1);
        a.old_unit = c.take<unit_record>(units);
        a.old_extent = c.take<unit_extent>(Types::compressor::ragged ? units : 0);
        a.pages = c.take<std::uint32_t>(Types::compressor::ragged ? units : 0);
        a.chain = c.take<std::uint32_t>(units);
        a.strength = c.take<std::uint32_t>(units);
        if constexpr (Types::layout::wants_correlation) {
            a.chosen = c.take<chosen_unit>(units);
            carver inner;
            co_retrieval(inner, probe_queries, units);
            a.pairs = c.take<std::byte>(inner.used());
        }
        // Last, because pages on their way to or from storage lie there too.
        const std::size_t causal = simd::causal_scratch_floats(m.dim);
        static_cast<void>(c.take<std::byte>(0)); // what is taken next begins where work does
        a.work_begins = c.used();
        a.cluster = c.take<std::byte>(
            std::max({cluster.scratch_bytes(rows, s.width), s.codec_fit, causal * sizeof(float)}));
        if (!a.cluster.empty()) a.causal = {reinterpret_cast<float*>(a.cluster.data()), causal};
        return a;
    }
};

}} // namespace kvtl::v0
