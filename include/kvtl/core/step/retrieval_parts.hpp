// What a shard's retrieval consists of, and what its prompts and steps have in common: what must hold before entries are
// accepted, and who has memory that is lent.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/call_half.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/shard_memory.hpp>
#include <kvtl/core/step/read_ahead.hpp>
#include <kvtl/core/store/pool_division.hpp>
#include <kvtl/geometry.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> struct retrieval_parts {
    using types = Types;
    using element_type = typename types::element_type;
    using pool = typename types::pool;
    using lane = typename types::lane;
    using runner = step_runner<types>;
    using store_type = store_of<types>;

    retrieval_parts() = default;
    retrieval_parts(const retrieval_parts&) = delete;
    retrieval_parts& operator=(const retrieval_parts&) = delete;

    template <class Config>
    [[gnu::cold]] void init(const cache_plan& p, const Config& config, const geometry& model,
                            std::uint32_t shard, any_io::device& device,
                            const typename types::lane_table& lanes, carver& fixed,
                            std::span<std::byte> frames, std::span<std::byte> borrowed,
                            std::span<pool> all_pools, std::uint64_t data_offset) noexcept {
        plan = p;
        index = shard;
        const shard_memory<types> m = shard_memory<types>::take(p, fixed, fixed);
        memory = m;
        const auto format = types::page_format_of(p.device_page, p.sizes);
        codec = typename types::codec(config.compressor, record_shape{p.model.lane_heads, p.model.dim});
        if constexpr (codec_shares<typename types::compressor>)
            codec.share(config.compressor, p.sizes.max_tokens, m.codec_tables);
        cluster = typename types::clusterer_state(config.clusterer, model);
        index_state = typename types::index_state(config.index, model);
        select = typename types::selector_state(config.selector, model);
        rest = typename types::estimator_state(config.estimator, model);
        layout = typename types::layout_state(config.layout, {p.file_pages, p.unit_pages}, m.layout);
        make_pools(config, format, frames, borrowed, all_pools, fixed);
        make_store(device, lanes, format, data_offset);
        if constexpr (types::virtualised)
            if (p.pool_layers > 1)
                arenas = layer_arenas<types>(store, plan, shard, lanes, m.arenas, frames,
                                             runner::store::step_io_batches + p.prefetches +
                                                 runner::store::write_io_batches);
        auto parts = shard_memory<types>::step_parts(p);
        parts.growth = &growth;
        parts.choose = &choose;
        parts.bars = &bars;
        parts.sums = &sums;
        parts.rest = &rest;
        parts.clock = clock();
        parts.decoded = m.shown;
        parts.query = m.query;
        step = runner(store, parts, m.step);
        owned = shard_lanes{&plan, index};
        ahead = read_ahead<types>(step, owned, m.prefetch_slots, m.other_lanes);
        for (std::uint32_t slot = 0; slot < p.max_sequences; ++slot)
            if (owned.count(slot) > 0 && plan.lent_page > 0) store.offer_tables(owned.at(slot, 0, 0).id);
    }

    /// Hands index and codec what was fitted offline, before the first key. A codec may refuse it.
    [[nodiscard, gnu::cold]] status bind(const calibration_view& calibration) {
        // What the first shard takes all others take.
        if (status s = bind_calibration(codec, calibration, index == 0); !s) return s;
        return bind_calibration(index_state, calibration);
    }

    /// Tokens that a layer has seen, dropped ones included; `none` when the shard owns no lane of it.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (owned.count(slot) == 0) return none;
        const lane_state& s = store.at(owned.at(slot, layer, 0).id).state();
        return s.dropped + s.tokens + s.staged;
    }
    /// Of all heads of a layer, staged ones included.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::size_t entries = 0;
        for (std::uint32_t i = 0; i < owned.count(slot); ++i) {
            const lane_state& s = store.at(owned.at(slot, layer, i).id).state();
            entries += (std::size_t{s.tokens} + s.staged) * plan.model.lane_heads;
        }
        return entries;
    }
    /// A selector that calibrates on prompts must see the queries of their last chunk, a codec those of the chunk that it is
    /// fitted to.
    [[nodiscard]] static status check_last_queries(const layer_input& in, bool fits = true,
                                                   bool calibrates = true) noexcept {
        if (!in.q.empty()) return {};
        if (fits && codec_fits_queries<typename types::compressor>)
            return status::failure(
                errc::invalid_argument,
                "prefill: q is empty; valid: the queries of the chunk, to which compressor "
                "%s is fitted",
                types::compressor::name.data());
        if (!calibrates || !sequence_bars<types>::of_prompts) return {};
        return status::failure(errc::invalid_argument,
                               "prefill: q is empty; valid: the queries of the prompt's last chunk, on which "
                               "selector %s calibrates",
                               types::selector::name.data());
    }
    /// A failed write of the sequence, whichever layer's.
    [[nodiscard]] status check_writes(std::uint32_t slot) noexcept {
        for (const pool& writes : write_pools_at(slot))
            if (store.has_failed_writes(writes)) return store.write_error(writes);
        return arenas.check_writes(owned.group(slot));
    }
    /// The lanes of a layer that the shard owns, for a call: until the next ones are listed.
    [[nodiscard]] std::span<const lane_ref> lanes_of(std::uint32_t slot, std::uint32_t layer) noexcept {
        return owned.list(slot, layer, memory.lanes);
    }
    [[nodiscard]] pool& pool_for(std::span<const lane_ref> lanes) noexcept {
        return store.pool_of(lanes[0].id);
    }
    /// The pools whose frames carry a sequence's writes: one, or one per layer.
    [[nodiscard]] std::span<pool> write_pools_at(std::uint32_t slot) noexcept {
        const std::size_t first = std::size_t{owned.group(slot)} * plan.pool_layers;
        return (types::sequential ? page_pools : pools).subspan(first, plan.pool_layers);
    }
    // ------------------------------------------------------------------------------------------------
    // memory that layers have in turn (layer_arenas.hpp)
    /// Sees to it that a layer's frames have their bytes, before anything of it is touched.
    [[nodiscard]] status bring(std::uint32_t slot, std::uint32_t layer) noexcept {
        return arenas.bring(owned.group(slot), layer, leaver(slot));
    }
    /// Begins to read in what the layer behind this one keeps resident; behind the last comes the first.
    void announce_next(std::uint32_t slot, std::uint32_t layer) noexcept {
        arenas.announce(owned.group(slot), (layer + 1) % plan.model.layers, leaver(slot));
    }
    /// The memory in which a prompt is organised.
    [[nodiscard]] status lend_to_prompt(std::uint32_t slot, std::uint32_t layer) noexcept {
        return arenas.widen(owned.group(slot), layer, leaver(slot));
    }
    /// Sees to it that the tables of these lanes have room for what `tokens` further tokens may add, and that frames borrow
    /// what no table needs. A prompt or a turn leaves tables longer than its units are: the next token makes them short
    /// again in its first layer, when all layers have had theirs.
    void let_tables_grow(std::span<const lane_ref> lanes, std::uint32_t tokens) noexcept {
        if (!pool_for(lanes).may_borrow()) return;
        const std::uint32_t at_once = plan.sizes.buffer + plan.sizes.spare + tokens; // each its own unit
        std::uint32_t units = 0, more = 0;
        for (const lane_ref& ref : lanes) {
            const lane_state& s = store.at(ref.id).state();
            const std::uint32_t most = std::max(s.units, cluster.max_units(s.tokens + tokens));
            units = std::max(units, s.units);
            more = std::max(more, std::min(at_once, most - s.units));
        }
        const std::uint32_t first = lanes[0].id;
        if (tokens == 1 && owned.layer_of(first) == 0) store.trim_tables(first, at_once);
        store.extend_tables(first, units, more, [&] { ahead.release_of(owned.group(owned.slot_of(first))); });
        pool_for(lanes).borrow();
    }
    /// What gives up what was read ahead for a layer of the sequence, or of those that share its frames.
    [[nodiscard]] auto leaver(std::uint32_t slot) noexcept {
        return [this, group = owned.group(slot)](std::uint32_t layer) { ahead.release_of(group, layer); };
    }
    /// The file's pages on their way, what is in memory of them, and how units grow.
    [[gnu::cold]] void make_store(any_io::device& device, const typename types::lane_table& lanes,
                                  const page_format& format, std::uint64_t data_offset) noexcept {
        const cache_plan& p = plan;
        const shard_memory<types>& m = memory;
        const std::uint32_t step_pages = file_map::step_pages_for(p.grow_pages, format.page_bytes);
        const std::uint32_t whole_runs = p.grow_pages / p.shard_sequences / layout.run_pages(),
                            grow_pages = whole_runs * layout.run_pages();
        const std::uint32_t front = p.storage_pages() - p.file_pages;
        const file_map map{.data_offset = data_offset,
                           .page_bytes = format.page_bytes,
                           .step_pages = step_pages,
                           .shard = index,
                           .shards = p.division.shards,
                           .front = p.file_pages,
                           .front_steps = (front + step_pages - 1) / step_pages};
        io = typename types::transfers(device.queue(index), map, m.checksum, m.trash, p.gap_pages,
                                       m.io_batches, p.io_timeout_ms);
        const typename page_store<types>::parts store_parts{format,
                                                            types::plain_format_of(p.device_page, p.sizes),
                                                            {p.model.lane_heads, p.model.dim},
                                                            &codec,
                                                            &layout,
                                                            &io,
                                                            &device,
                                                            pools,
                                                            m.other_owners,
                                                            &lanes,
                                                            &stats,
                                                            p.division.by_sequence ? p.division.shards : 1,
                                                            p.pool_layers,
                                                            grow_pages - std::min(grow_pages, p.unit_pages)};
        if (p.time_phases) watch = phase_clock(stats.phase_ns);
        sums = summaries<types>(index_state, rest, lanes, p.model.summaries(p.max_entries), m.sums);
        choose = chooser<types>(p.model, index_state, select, m.choose, &stats.choosing);
        bars = sequence_bars<types>(plan, select, m.bars);
        if constexpr (types::sequential) {
            store = store_type(typename store_type::parts{
                store_parts, types::slot_format_of(p.sizes, p.max_entries), page_pools, p.spare_pages});
            growth = growth_of<types>(store, sums, m.growth);
        } else {
            store = store_type(store_parts);
            growth = growth_of<types>(store, cluster, sums, m.growth);
            prompt = prompt_builder<types>(store, {p.model, p.sizes, p.unit_pages, &cluster, &growth, &choose,
                                                   &sums, m.query, p.threads});
        }
        store.set_first_write_io_batch(runner::store::step_io_batches + p.prefetches);
    }

    /// Divides the shard's frames among its pools. Lanes of fixed groups have two kinds: page frames, of all pools, then
    /// slots.
    template <class Config>
    [[gnu::cold]] void make_pools(const Config& config, const page_format& format,
                                  std::span<std::byte> frames, std::span<std::byte> borrowed,
                                  std::span<pool> all_pools, carver& metadata) noexcept {
        const std::size_t kinds = types::sequential ? 2 : 1;
        pools = all_pools.first(all_pools.size() / kinds);
        page_pools = all_pools.subspan(pools.size());
        if constexpr (types::sequential) {
            const std::size_t carriers = std::size_t{plan.page_frames} * format.page_bytes;
            for (std::size_t i = 0; i < pools.size(); ++i)
                page_pools[i] = pool(config.replacement, frames.subspan(i * carriers, carriers),
                                     format.page_bytes, 1, plan.page_frames, 0, metadata);
            division = {config.replacement,
                        pools,
                        frames.subspan(pools.size() * carriers),
                        plan.slots,
                        types::slot_frame_bytes(plan.sizes, plan.max_entries),
                        types::slot_frames(plan.sizes, plan.max_entries),
                        1,
                        0,
                        metadata};
        } else if (plan.pool_layers >
                   1) { // they are made one size, and get their memory when it is their turn
            for (pool& p : pools)
                p = pool(config.replacement, frames.first(std::size_t{plan.frames} * format.page_bytes),
                         format.page_bytes, plan.unit_pages, plan.open_pages, plan.sizes.running, metadata);
        } else {
            division = {config.replacement,
                        pools,
                        frames,
                        plan.frames,
                        format.page_bytes,
                        plan.unit_pages,
                        plan.open_pages,
                        plan.sizes.running,
                        metadata,
                        borrowed,
                        plan.borrowed_frames};
        }
    }

    /// The stopwatch of decode, or none.
    [[nodiscard]] phase_clock* clock() noexcept { return plan.time_phases ? &watch : nullptr; }

    /// Every call ends the previous selection and takes note of what landed meanwhile.
    void begin_call() noexcept {
        ahead.release_selection();
        io.poll(false);
    }

    /// What must hold before entries are accepted: no failed write, room in the tables and on storage, the lane
    /// clustered when it is time.
    status accept(std::span<const lane_ref> lanes, std::uint32_t tokens) noexcept {
        if (status s = check_complete(lanes); !s) return s;
        if (status s = check_writes(owned.slot_of(lanes[0].id)); !s) return s;
        // A write that fails on this occasion is the next call's error, as others are, but many tokens need the room.
        let_tables_grow(lanes, tokens);
        if (tokens > 1)
            if (status s = check_writes(owned.slot_of(lanes[0].id)); !s) return s;
        std::uint32_t pages = 0;
        for (const lane_ref& ref : lanes) {
            if (status s = step.make_room(ref.id); !s) return s;
            pages += growth.worst_case_pages(store.at(ref.id), tokens);
        }
        pages = std::min(pages, plan.file_pages - layout.top());
        if (status s = store.ensure_space(pages); !s) return s;
        return cluster_ready(lanes);
    }
    /// Clusters the lanes that have become long enough for it.
    status cluster_ready(std::span<const lane_ref> lanes) noexcept {
        if constexpr (types::clusterer::clusters_prompt)
            for (const lane_ref& ref : lanes) {
                if (!should_found(store.at(ref.id))) continue;
                ahead.release_all();
                if (status s = lend_to_prompt(owned.slot_of(ref.id), owned.layer_of(ref.id)); !s) return s;
                if (status s = prompt.begin(pool_for(lanes), 0); !s) return s;
                store.make_room_for_prompt(ref.id, cluster.max_units(store.at(ref.id).state().tokens));
                if (status s = prompt.found(ref.id); !s) return s;
                pool_for(lanes).borrow();
            }
        return {};
    }
    [[nodiscard]] bool window_overflows(std::span<const lane_ref> lanes) const noexcept {
        for (const lane_ref& ref : lanes)
            if (growth.overdue(store.at(ref.id))) return true;
        return false;
    }
    [[nodiscard]] status check_complete(std::span<const lane_ref> lanes) const noexcept {
        if (io.gave_up()) return io.no_answer();
        if (store.at(lanes[0].id).state().cut_short)
            return status::failure(errc::io_error,
                                   "a turn of this sequence was cut short by a device error; end it");
        const std::uint32_t staged = store.at(lanes[0].id).state().staged;
        if (staged > 0)
            return status::failure(errc::invalid_argument,
                                   "the prompt of this sequence is not complete: %u tokens wait for a "
                                   "prefill with last_chunk = true",
                                   staged);
        return {};
    }
    [[nodiscard]] bool should_found(const lane& l) const noexcept {
        if constexpr (types::clusterer::clusters_prompt)
            return !l.state().clustered && cluster.ready(l.state().window_begin - l.state().sinks);
        else
            return false;
    }
    /// A turn failed halfway. Lanes of a first turn are empty again. Others differ, and what they attended cannot be read again: later
    /// calls say that the sequence must be ended.
    void give_up_turn(std::span<const lane_ref> lanes, bool empty) noexcept {
        if (empty) return forget(lanes);
        for (const lane_ref& ref : lanes) store.at(ref.id).state().cut_short = true;
    }
    /// A prompt that could not be taken leaves empty lanes.
    void forget(std::span<const lane_ref> lanes) noexcept {
        store.settle_all_writes(store.write_pool(lanes[0].id));
        for (const lane_ref& ref : lanes) store.forget_lane(ref.id);
    }

    /// A layer's prompt is in its units: a selector that calibrates looks at the last of the chunk's queries.
    void look_at_prompt(std::uint32_t slot, std::uint32_t layer, std::span<const lane_ref> lanes,
                        const layer_input& in, std::uint32_t chunk) noexcept {
        bars.look(
            slot, layer, lanes, in, chunk, choose,
            [this](const lane_ref& ref) { return growth.view(ref.id); },
            [this](const lane_ref& ref) { return store.at(ref.id).budget(); }, memory.query,
            step.choice().room_of(0));
    }

    /// Takes back what a call has counted. Times and wasted bytes stay.
    void restore(const statistics& then) noexcept {
        const phase_times taken = stats.phase_ns;
        const std::uint64_t wasted = stats.wasted_bytes;
        stats = then;
        stats.phase_ns = taken, stats.wasted_bytes = wasted;
    }
    void note_storage() noexcept {
        stats.storage_bytes = std::max<std::uint64_t>(stats.storage_bytes, std::uint64_t{layout.used()} *
                                                                               store.format().page_bytes);
    }

    cache_plan plan{};
    std::uint32_t index = 0;
    shard_memory<types> memory{};
    shard_lanes owned{};
    typename types::codec codec{};
    typename types::clusterer_state cluster{};
    typename types::index_state index_state{};
    typename types::selector_state select{};
    typename types::layout_state layout{};
    typename types::transfers io{};
    std::span<pool> pools;
    std::span<pool> page_pools;                          ///< fixed groups: frames that carry pages
    pool_division<typename types::replacement> division; ///< of the pools of sequences
    typename types::estimator_state rest{};
    summaries<types> sums;
    phase_clock watch;
    store_type store;
    arenas_of<types> arenas;
    growth_of<types> growth;
    chooser<types> choose;
    sequence_bars<types> bars;
    prompt_builder<types> prompt; ///< clusters: groups need none
    runner step;
    read_ahead<types> ahead;
    statistics stats;
    statistics before; ///< `stats` in front of the call that is under way
};

}} // namespace kvtl::v0
