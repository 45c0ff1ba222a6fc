// What a shard keeps in the cache's reservation besides frames and lanes.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/cache_plan.hpp>
#include <kvtl/core/step/prompt.hpp>
#include <kvtl/core/step/step.hpp>
#include <kvtl/core/store/layer_arenas.hpp>
#include <kvtl/slots/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// Lays a shard out in memory, or only counts when the carvers have no block.
template <class Types> struct shard_memory {
    using runner = step_runner<Types>;
    /// Tokens whose queries attend together in 16 bits; of floats these are more (turn_attention.hpp).
    static constexpr std::uint32_t turn_tokens = Types::sequential ? 64 : 32;

    std::span<std::uint32_t> checksum;
    std::span<std::uint8_t> other_owners;
    std::span<std::byte> layout, trash;
    std::span<io_batch> io_batches;
    typename arenas_of<Types>::tables arenas;
    typename growth_of<Types>::scratch growth;
    typename chooser<Types>::scratch choose;
    typename sequence_bars<Types>::scratch bars;
    typename runner::scratch step;
    std::span<lane_ref> lanes, other_lanes; ///< of the current call; of a prefetch that it ends
    std::span<float> query;                 ///< (HQ, D) of a token, where they come in 16 bits
    std::span<float> moving_k, moving_v; ///< (moving_rows, width) what retention kept of one lane, on its way
    std::span<entry_facts> moving_facts; ///< (moving_rows)
    std::span<prefetch_slot> prefetch_slots;
    typename summaries<Types>::scratch sums;
    std::span<std::byte> codec_tables; ///< what the codec's lanes have in common
    row_tile<Types> shown;             ///< rows of a selection, for engines that attend themselves

    [[gnu::cold]] static shard_memory take(const cache_plan& p, carver& metadata, carver& scratch) noexcept {
        shard_memory m;
        const layout_limits limits{p.file_pages, p.unit_pages};
        m.checksum = metadata.take<std::uint32_t>(p.storage_pages());
        m.other_owners = metadata.take<std::uint8_t>(p.shard_sequences > 1 ? p.file_pages : 0);
        m.layout = metadata.take<std::byte>(Types::layout_state::bytes(limits));
        const auto format = Types::page_format_of(p.device_page, p.sizes);
        m.trash = scratch.take<std::byte>(format.page_bytes, p.device_page);
        const std::uint32_t io_batches =
            runner::store::step_io_batches + p.prefetches + runner::store::write_io_batches;
        m.io_batches =
            metadata.take<io_batch>(io_batches + p.page_in_batches() + p.representative_io_batches());
        for (std::uint32_t i = 0; i < io_batches; ++i) {
            const bool reads = i < runner::store::step_io_batches + p.prefetches;
            io_batch f(scratch, p.io_batch_pages, reads ? p.batch_items : 1, reads && Types::sequential);
            if (!m.io_batches.empty()) m.io_batches[i] = f;
        }
        for (std::uint32_t i = 0; i < p.page_in_batches(); ++i) {
            io_batch f(scratch, p.frames, 0);
            if (!m.io_batches.empty()) m.io_batches[io_batches + i] = f;
        }
        for (std::uint32_t i = 0; i < p.representative_io_batches(); ++i) {
            io_batch f(scratch, p.representative_pages, 0);
            if (!m.io_batches.empty()) m.io_batches[io_batches + p.page_in_batches() + i] = f;
        }
        m.arenas = arenas_of<Types>::tables::take(metadata, p);
        // What a step or a turn sums up, and what moves when units grow, are never needed at once.
        carver of_growth, of_step, unused;
        using grows = typename growth_of<Types>::scratch;
        static_cast<void>(grows::take(of_growth, p.sizes, p.max_entries, format.rows));
        static_cast<void>(runner::scratch::take(unused, of_step, step_parts(p), p.shard_lanes));
        const auto shared = scratch.take<std::byte>(std::max(of_growth.used(), of_step.used()));
        carver for_growth(shared), for_step(shared);
        m.growth = grows::take(for_growth, p.sizes, p.max_entries, format.rows);
        m.choose =
            chooser<Types>::scratch::take(scratch, p.model, p.sizes.max_units, p.max_entries, p.index_floats);
        m.bars = sequence_bars<Types>::scratch::take(metadata, p);
        m.sums = summaries<Types>::scratch::take(scratch, p.sizes);
        m.step = runner::scratch::take(scratch, for_step, step_parts(p), p.shard_lanes);
        m.codec_tables = scratch.take<std::byte>(p.codec_shared_bytes);
        m.shown = row_tile<Types>::take(scratch, simd::attend_block, p.sizes.width);
        m.lanes = scratch.take<lane_ref>(p.shard_lanes);
        m.other_lanes = scratch.take<lane_ref>(p.shard_lanes);
        m.query = scratch.take<float>(std::size_t{p.model.query_heads()} * p.model.dim);
        m.moving_k = scratch.take<float>(std::size_t{p.moving_rows} * p.model.width());
        m.moving_v = scratch.take<float>(std::size_t{p.moving_rows} * p.model.width());
        m.moving_facts = scratch.take<entry_facts>(p.moving_rows);
        m.prefetch_slots = metadata.take<prefetch_slot>(p.prefetches);
        for (std::uint32_t i = 0; i < p.prefetches; ++i) {
            prefetch_slot a;
            a.query = scratch.take<float>(std::size_t{p.model.query_heads()} * p.model.dim);
            a.chosen = scratch.take<chosen_unit>(std::size_t{p.shard_lanes} * p.chosen_per_lane);
            a.count = scratch.take<std::uint32_t>(p.shard_lanes);
            if (!m.prefetch_slots.empty()) m.prefetch_slots[i] = a;
        }
        return m;
    }

    [[nodiscard]] static typename runner::parts step_parts(const cache_plan& p) noexcept {
        typename runner::parts parts;
        parts.model = p.model;
        parts.sizes = p.sizes;
        parts.chosen_per_lane = p.chosen_per_lane;
        parts.batch_items = p.batch_items;
        parts.turn_tokens = turn_tokens;
        parts.stretch_bytes = p.stretch_bytes;
        parts.max_entries = p.max_entries;
        parts.true_layers = p.true_layers;
        parts.estimator_floats = p.rest_floats;
        return parts;
    }
};

}} // namespace kvtl::v0
