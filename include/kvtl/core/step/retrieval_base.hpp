// What prompts and steps of a shard's retrieval share: lanes, pools, the store, reads ahead, what must hold
// before entries are accepted.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/shard_memory.hpp>
#include <kvtl/core/step/choice_source.hpp>
#include <kvtl/geometry.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class retrieval_base {
  public:
    using types = Types;
    using element_type = typename types::element_type;
    using pool = typename types::pool;
    using lane = typename types::lane;
    using runner = step_runner<types>;
    using store_type = store_of<types>;

    retrieval_base() = default;
    retrieval_base(const retrieval_base&) = delete;
    retrieval_base& operator=(const retrieval_base&) = delete;

    using memory = shard_memory<types>;

    template <class Config>
    [[gnu::cold]] void init(const cache_plan& p, const Config& config, const geometry& model,
                            std::uint32_t index, typename types::device& device,
                            const typename types::lane_table& lanes, carver& fixed,
                            std::span<std::byte> frames, std::span<std::byte> borrowed, std::span<pool> pools,
                            std::uint64_t data_offset) noexcept {
        plan_ = p;
        index_ = index;
        const memory m = memory::take(p, fixed, fixed);
        memory_ = m;
        const auto format = types::page_format_of(p.device_page, p.sizes);
        codec_ = typename types::codec(config.compressor, record_shape{p.model.lane_heads, p.model.dim});
        if constexpr (detail::codec_shares<typename types::compressor>())
            codec_.share(config.compressor, p.sizes.max_tokens, m.codec_tables);
        cluster_ = typename types::clusterer_state(config.clusterer, model);
        index_state_ = typename types::index_state(config.index, model);
        select_ = typename types::selector_state(config.selector, model);
        rest_ = typename types::estimator_state(config.estimator, model);
        layout_ =
            typename types::layout_state(config.layout, {p.file_pages, p.grow_pages, p.unit_pages}, m.layout);
        make_pools(config, format, frames, borrowed, pools, fixed);
        make_store(device, lanes, format, data_offset);
        if constexpr (types::virtualised)
            if (p.pool_layers > 1)
                arenas_ = layer_arenas<types>(store_, plan_, index, lanes, m.arenas, frames,
                                              runner::store::step_io_batches + p.prefetches +
                                                  runner::store::write_io_batches);
        auto parts = memory::step_parts(p);
        parts.growth = &growth_;
        parts.choose = &choose_;
        parts.bars = &bars_;
        parts.sums = &sums_;
        parts.rest = &rest_;
        parts.clock = clock();
        parts.decoded = m.shown;
        parts.query = m.query;
        step_ = runner(store_, parts, m.step);
        source_ = choice_source<types>(step_, store_, plan_);
        for (std::uint32_t slot = 0; slot < p.max_sequences; ++slot)
            if (lane_count(slot) > 0 && plan_.lent_page > 0) store_.offer_tables(lane_at(slot, 0, 0).id);
    }

    /// Hands index and codec what was fitted offline, before the first key. A codec may refuse it.
    [[nodiscard, gnu::cold]] status bind(const calibration_view& calibration) {
        if constexpr (detail::calibrated_kinds<typename types::compressor>() != 0) {
            if (index_ == 0) // what the first shard takes all others take
                if (status s = codec_.check_calibration(calibration); !s) return s;
            codec_.bind(calibration);
        }
        if constexpr (requires { index_state_.bind(calibration); }) index_state_.bind(calibration);
        return {};
    }

    /// Tokens that a layer has seen, dropped ones included; `none` when the shard owns no lane of it.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (lane_count(slot) == 0) return none;
        const lane_state& s = store_.at(lane_at(slot, layer, 0).id).state();
        return s.dropped + s.tokens + s.staged;
    }
    /// Of all heads of a layer, staged ones included.
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        std::size_t entries = 0;
        for (std::uint32_t i = 0; i < lane_count(slot); ++i) {
            const lane_state& s = store_.at(lane_at(slot, layer, i).id).state();
            entries += (std::size_t{s.tokens} + s.staged) * plan_.model.lane_heads;
        }
        return entries;
    }
    /// A selector that calibrates on prompts must see the queries of their last chunk.
    [[nodiscard]] static status check_last_queries(const layer_input& in) noexcept {
        if (!sequence_bars<types>::of_prompts || !in.q.empty()) return {};
        return status::failure(errc::invalid_argument,
                               "prefill: q is empty; valid: the queries of the prompt's last chunk, on which "
                               "selector %s calibrates",
                               types::selector::name.data());
    }
    /// A failed write of the sequence, whichever layer's.
    [[nodiscard]] status check_writes(std::uint32_t slot) noexcept {
        for (const pool& writes : write_pools_at(slot))
            if (store_.has_failed_writes(writes)) return store_.write_error(writes);
        return arenas_.check_writes(group_of(slot));
    }
    [[nodiscard]] store_of<types>& store() noexcept { return store_; }
    [[nodiscard]] growth_of<types>& growth() noexcept { return growth_; }

  protected:
    /// How many lanes of each layer this shard owns. Layer-wide lanes belong to the shard of their sequence.
    [[nodiscard]] std::uint32_t lane_count(std::uint32_t slot) const noexcept {
        return plan_.division.owns(slot, index_) ? plan_.division.lanes_of(plan_.model.lanes(), index_) : 0;
    }
    [[nodiscard]] lane_ref lane_at(std::uint32_t slot, std::uint32_t layer, std::uint32_t i) const noexcept {
        const std::uint32_t in_layer = plan_.division.lane(i, index_);
        return {(slot * plan_.model.layers + layer) * plan_.model.lanes() + in_layer, in_layer};
    }
    /// Those lanes, for a call: until the next one is listed.
    [[nodiscard]] std::span<const lane_ref> lanes_of(std::uint32_t slot, std::uint32_t layer) noexcept {
        return list_lanes(slot, layer, memory_.lanes);
    }
    [[nodiscard]] std::span<const lane_ref> list_lanes(std::uint32_t slot, std::uint32_t layer,
                                                       std::span<lane_ref> into) const noexcept {
        const std::uint32_t n = lane_count(slot);
        for (std::uint32_t i = 0; i < n; ++i) into[i] = lane_at(slot, layer, i);
        return into.first(n);
    }
    [[nodiscard]] std::uint32_t slot_of(std::uint32_t lane_id) const noexcept {
        return lane_id / (plan_.model.layers * plan_.model.lanes());
    }
    [[nodiscard]] std::uint32_t layer_of(std::uint32_t lane_id) const noexcept {
        return lane_id / plan_.model.lanes() % plan_.model.layers;
    }
    [[nodiscard]] pool& pool_for(std::span<const lane_ref> lanes) noexcept {
        return store_.pool_of(lanes[0].id);
    }
    /// A sequence among those that have pools of their own.
    [[nodiscard]] std::uint32_t group_of(std::uint32_t slot) const noexcept {
        if (plan_.pool_groups() == 1) return 0;
        return plan_.division.seat(slot);
    }
    /// The pools whose frames carry a sequence's writes: one, or one per layer.
    [[nodiscard]] std::span<pool> write_pools_at(std::uint32_t slot) noexcept {
        const std::size_t first = std::size_t{group_of(slot)} * plan_.pool_layers;
        if constexpr (types::sequential)
            return page_pools_.subspan(first, plan_.pool_layers);
        else
            return pools_.subspan(first, plan_.pool_layers);
    }
    // ------------------------------------------------------------------------------------------------
    // memory that layers have in turn (layer_arenas.hpp)
    /// Sees to it that a layer's frames have their bytes, before anything of it is touched.
    [[nodiscard]] status bring(std::uint32_t slot, std::uint32_t layer) noexcept {
        release_prefetches_of_branches(slot, layer);
        return arenas_.bring(group_of(slot), layer, leaver(slot));
    }
    /// Begins to read in what the layer behind this one keeps resident; behind the last comes the first.
    void announce_next(std::uint32_t slot, std::uint32_t layer) noexcept {
        arenas_.announce(group_of(slot), (layer + 1) % plan_.model.layers, leaver(slot));
    }
    /// One io_batch at a time may carry a page of a stream (page_store.hpp, bounce). So prefetches of other branches end
    /// before a lane reads that shares runs with them.
    void release_prefetches_of_branches(std::uint32_t slot, std::uint32_t layer) noexcept {
        if constexpr (types::sequential) {
            if (!store_.any_shared() || !any_prefetch()) return;
            bool shares = false;
            for (std::uint32_t i = 0; i < lane_count(slot); ++i)
                shares = shares || store_.shares_runs(lane_at(slot, layer, i).id);
            for (prefetch_slot& a : memory_.prefetch_slots)
                if (shares && a.io_batch != none && a.slot != slot && a.layer == layer)
                    release(&a, list_lanes(a.slot, a.layer, memory_.other_lanes), runner::fate::dropped);
        }
    }
    /// The memory in which a prompt is organised.
    [[nodiscard]] status lend_to_prompt(std::uint32_t slot, std::uint32_t layer) noexcept {
        return arenas_.widen(group_of(slot), layer, leaver(slot));
    }
    /// Sees to it that the tables of these lanes have room for what `tokens` further tokens may add, and that frames borrow
    /// what no table needs. A prompt or a turn leaves tables longer than its units are: the next token makes them short
    /// again in its first layer, when all layers have had theirs.
    void let_tables_grow(std::span<const lane_ref> lanes, std::uint32_t tokens) noexcept {
        if (!pool_for(lanes).may_borrow()) return;
        const std::uint32_t at_once = plan_.sizes.buffer + plan_.sizes.spare + tokens; // each its own unit
        std::uint32_t units = 0, more = 0;
        for (const lane_ref& ref : lanes) {
            const lane_state& s = store_.at(ref.id).state();
            const std::uint32_t most = std::max(s.units, cluster_.max_units(s.tokens + tokens));
            units = std::max(units, s.units);
            more = std::max(more, std::min(at_once, most - s.units));
        }
        const std::uint32_t first = lanes[0].id;
        if (tokens == 1 && layer_of(first) == 0) store_.trim_tables(first, at_once);
        store_.extend_tables(first, units, more, [&] { release_prefetches_of(group_of(slot_of(first))); });
        pool_for(lanes).borrow();
    }
    /// What gives up what was read ahead for a layer of the sequence, or of those that share its frames.
    [[nodiscard]] auto leaver(std::uint32_t slot) noexcept {
        return [this, group = group_of(slot)](std::uint32_t layer) { release_prefetches_of(group, layer); };
    }
    /// Gives up what was read ahead for a layer of those that share the frames, or for all layers.
    void release_prefetches_of(std::uint32_t group, std::uint32_t layer = none) noexcept {
        for (prefetch_slot& a : memory_.prefetch_slots) {
            if (a.io_batch == none || group_of(a.slot) != group || (layer != none && a.layer != layer))
                continue;
            if (&a == selection_)
                release_selection();
            else
                release(&a, list_lanes(a.slot, a.layer, memory_.other_lanes), runner::fate::dropped);
        }
    }

    /// The file's pages on their way, what is in memory of them, and how units grow.
    [[gnu::cold]] void make_store(typename types::device& device, const typename types::lane_table& lanes,
                                  const page_format& format, std::uint64_t data_offset) noexcept {
        const cache_plan& p = plan_;
        const memory& m = memory_;
        const std::uint32_t step_pages = file_map::step_pages_for(p.grow_pages, format.page_bytes);
        const std::uint32_t front = p.storage_pages() - p.file_pages;
        const file_map map{.data_offset = data_offset,
                           .page_bytes = format.page_bytes,
                           .step_pages = step_pages,
                           .shard = index_,
                           .shards = p.division.shards,
                           .front = p.file_pages,
                           .front_steps = (front + step_pages - 1) / step_pages};
        io_ = typename types::transfers(device.queue(index_), map, m.checksum, m.trash, p.gap_pages,
                                        m.io_batches, p.io_timeout_ms);
        const typename page_store<types>::parts store_parts{format,
                                                            types::plain_format_of(p.device_page, p.sizes),
                                                            {p.model.lane_heads, p.model.dim},
                                                            &codec_,
                                                            &layout_,
                                                            &io_,
                                                            &device,
                                                            pools_,
                                                            m.bounce,
                                                            m.other_owners,
                                                            &lanes,
                                                            &stats_,
                                                            p.division.by_sequence ? p.division.shards : 1,
                                                            p.pool_layers};
        if (p.time_phases) clock_ = phase_clock(stats_.phase_ns);
        sums_ = summaries<types>(index_state_, rest_, lanes, p.model.summaries(p.max_entries), m.sums);
        choose_ = chooser<types>(p.model, index_state_, select_, m.choose, &stats_.choosing);
        bars_ = sequence_bars<types>(plan_, select_, m.bars);
        if constexpr (types::sequential) {
            store_ = store_type(typename store_type::parts{
                store_parts, types::slot_format_of(p.sizes, p.max_entries), page_pools_, p.spare_pages});
            growth_ = growth_of<types>(store_, sums_, m.growth);
        } else {
            store_ = store_type(store_parts);
            growth_ = growth_of<types>(store_, cluster_, sums_, m.growth);
            prompt_ = prompt_builder<types>(store_, {p.model, p.sizes, p.unit_pages, &cluster_, &growth_,
                                                     &choose_, &sums_, m.query, p.threads});
        }
        store_.set_first_write_io_batch(runner::store::step_io_batches + p.prefetches);
    }

    /// Divides the shard's frames among its pools. Lanes of fixed groups have two kinds: page frames, then
    /// slots.
    template <class Config>
    [[gnu::cold]] void make_pools(const Config& config, const page_format& format,
                                  std::span<std::byte> frames, std::span<std::byte> borrowed,
                                  std::span<pool> pools, carver& metadata) noexcept {
        const std::size_t pool_bytes = std::size_t{plan_.frames} * format.page_bytes,
                          lent = std::size_t{plan_.borrowed_frames} * format.page_bytes;
        // Pools that take turns are made one size, and get their memory when it is their turn.
        const bool turns = plan_.pool_layers > 1;
        const std::size_t kinds = types::sequential ? 2 : 1;
        pools_ = pools.first(pools.size() / kinds);
        page_pools_ = pools.subspan(pools_.size());
        for (std::uint32_t i = 0; i < pools_.size(); ++i) {
            const auto part = frames.subspan(turns ? 0 : i * pool_bytes, pool_bytes);
            if constexpr (types::sequential) {
                const std::uint32_t piece = types::slot_frame_bytes(plan_.sizes, plan_.max_entries);
                const std::size_t carriers = std::size_t{plan_.page_frames} * format.page_bytes;
                page_pools_[i] = pool(config.replacement, part.first(carriers), format.page_bytes, 1,
                                      plan_.page_frames, 0, metadata);
                pools_[i] = pool(config.replacement, part.subspan(carriers, std::size_t{plan_.slots} * piece),
                                 piece, types::slot_frames(plan_.sizes, plan_.max_entries), 1, 0, metadata);
            } else {
                pools_[i] =
                    pool(config.replacement, part, format.page_bytes, plan_.unit_pages, plan_.open_pages,
                         plan_.sizes.running, metadata, borrowed.subspan(i * lent, lent));
            }
        }
    }

    /// The stopwatch of decode, or none.
    [[nodiscard]] phase_clock* clock() noexcept { return plan_.time_phases ? &clock_ : nullptr; }

    /// Every call ends the previous selection and takes note of what landed meanwhile.
    void begin_call() noexcept {
        release_selection();
        io_.poll(false);
    }

    /// What must hold before entries are accepted: no failed write, room in the tables and on storage, the lane
    /// clustered when it is time.
    status accept(std::span<const lane_ref> lanes, std::uint32_t tokens) noexcept {
        if (status s = check_complete(lanes); !s) return s;
        if (status s = check_writes(slot_of(lanes[0].id)); !s) return s;
        // A write that fails on this occasion is the next call's error, as others are, but many tokens need the room.
        let_tables_grow(lanes, tokens);
        if (tokens > 1)
            if (status s = check_writes(slot_of(lanes[0].id)); !s) return s;
        std::uint32_t pages = 0;
        for (const lane_ref& ref : lanes) {
            const lane l = store_.at(ref.id);
            if (status s = step_.make_room(ref.id); !s) return s;
            if constexpr (types::sequential) {
                pages += growth_.worst_case_pages(tokens);
            } else {
                const std::uint32_t units =
                    std::min(l.state().buffered + tokens, cluster_.max_units(l.state().tokens + tokens));
                pages += growth_.worst_case_pages(units);
            }
        }
        pages = std::min(pages, plan_.file_pages - layout_.top());
        if (status s = store_.ensure_space(pages); !s) return s;
        return cluster_ready(lanes);
    }
    /// Clusters the lanes that have become long enough for it.
    status cluster_ready(std::span<const lane_ref> lanes) noexcept {
        if constexpr (types::clusterer::clusters_prompt)
            for (const lane_ref& ref : lanes) {
                if (!should_found(store_.at(ref.id))) continue;
                release_all_prefetches();
                if (status s = lend_to_prompt(slot_of(ref.id), layer_of(ref.id)); !s) return s;
                if (status s = prompt_.begin(pool_for(lanes), 0); !s) return s;
                store_.make_room_for_prompt(ref.id, cluster_.max_units(store_.at(ref.id).state().tokens));
                if (status s = prompt_.found(ref.id); !s) return s;
                pool_for(lanes).borrow();
            }
        return {};
    }
    [[nodiscard]] bool window_overflows(std::span<const lane_ref> lanes) const noexcept {
        for (const lane_ref& ref : lanes)
            if (growth_.overdue(store_.at(ref.id))) return true;
        return false;
    }
    [[nodiscard]] status check_complete(std::span<const lane_ref> lanes) const noexcept {
        if (io_.gave_up()) return io_.no_answer();
        if (store_.at(lanes[0].id).state().cut_short)
            return status::failure(errc::io_error,
                                   "a turn of this sequence was cut short by a device error; end it");
        const std::uint32_t staged = store_.at(lanes[0].id).state().staged;
        if (staged > 0)
            return status::failure(errc::invalid_argument,
                                   "the prompt of this sequence is not complete: %u tokens wait for a "
                                   "prefill with last_chunk = true",
                                   staged);
        return {};
    }
    [[nodiscard]] bool should_found(const lane& l) const noexcept {
        if constexpr (types::clusterer::clusters_prompt)
            return !l.state().clustered && cluster_.ready(l.state().window_begin - l.state().sinks);
        else
            return false;
    }
    /// A prompt that could not be taken leaves empty lanes.
    void forget(std::span<const lane_ref> lanes) noexcept {
        store_.settle_all_writes(store_.write_pool(lanes[0].id));
        for (const lane_ref& ref : lanes) store_.forget_lane(ref.id);
    }

    /// A layer's prompt is in its units: a selector that calibrates looks at the last of the chunk's queries.
    void look_at_prompt(std::uint32_t slot, std::uint32_t layer, std::span<const lane_ref> lanes,
                        const layer_input& in, std::uint32_t chunk) noexcept {
        if constexpr (sequence_bars<types>::of_prompts)
            bars_.look(
                slot, layer, lanes, in, chunk, choose_,
                [this](const lane_ref& ref) { return growth_.view(ref.id); },
                [this](const lane_ref& ref) { return store_.at(ref.id).budget(); }, memory_.query,
                step_.chosen_of(0));
    }

    void note_storage() noexcept {
        stats_.storage_bytes = std::max<std::uint64_t>(stats_.storage_bytes, std::uint64_t{layout_.used()} *
                                                                                 store_.format().page_bytes);
    }

    // ------------------------------------------------------------------------------------------------
    // reading ahead
    [[nodiscard]] prefetch_slot* find_prefetch(std::uint32_t slot, std::uint32_t layer) noexcept {
        for (prefetch_slot& a : memory_.prefetch_slots)
            if (a.io_batch != none && a.slot == slot && a.layer == layer) return &a;
        return nullptr;
    }
    [[nodiscard]] prefetch_slot* free_prefetch_slot() noexcept {
        for (prefetch_slot& a : memory_.prefetch_slots)
            if (a.io_batch == none) return &a;
        return nullptr;
    }
    [[nodiscard]] bool any_prefetch() const noexcept { return any_in_use(memory_.prefetch_slots); }
    /// Of sequences that share the frames.
    [[nodiscard]] bool any_prefetch_of(std::uint32_t group) const noexcept {
        return std::any_of(
            memory_.prefetch_slots.begin(), memory_.prefetch_slots.end(),
            [&](const prefetch_slot& a) { return a.io_batch != none && group_of(a.slot) == group; });
    }
    void release(prefetch_slot* a, std::span<const lane_ref> lanes, typename runner::fate end) noexcept {
        if (a == nullptr) return;
        step_.release_io_batch(lanes, a->io_batch, end);
        a->io_batch = none;
    }
    void release_selection() noexcept {
        if (selection_ == nullptr) return;
        prefetch_slot* a = std::exchange(selection_, nullptr);
        release(a, list_lanes(a->slot, a->layer, memory_.other_lanes), runner::fate::shown);
    }
    void release_all_prefetches() noexcept {
        release_selection();
        for (prefetch_slot& a : memory_.prefetch_slots)
            if (a.io_batch != none)
                release(&a, list_lanes(a.slot, a.layer, memory_.other_lanes), runner::fate::dropped);
    }
    cache_plan plan_{};
    std::uint32_t index_ = 0;
    memory memory_{};
    typename types::codec codec_{};
    typename types::clusterer_state cluster_{};
    typename types::index_state index_state_{};
    typename types::selector_state select_{};
    typename types::layout_state layout_{};
    typename types::transfers io_{};
    std::span<pool> pools_;
    std::span<pool> page_pools_; ///< fixed groups: frames that carry pages
    typename types::estimator_state rest_{};
    summaries<types> sums_;
    phase_clock clock_;
    store_type store_;
    arenas_of<types> arenas_;
    growth_of<types> growth_;
    chooser<types> choose_;
    sequence_bars<types> bars_;
    prompt_builder<types> prompt_; ///< clusters: groups need none
    runner step_;
    choice_source<types> source_;
    statistics stats_;
    prefetch_slot* selection_ = nullptr;
};

}} // namespace kvtl::v0
