// One shard of a cache: everything that attending its lanes touches. Shards share nothing but the file.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/config.hpp>
#include <kvtl/core/plan/cache_types.hpp>
#include <kvtl/core/plan/shard_memory.hpp>
#include <kvtl/core/step/choice_source.hpp>

namespace kvtl { inline namespace v0 {

template <class Preset, class Geometry> class shard {
  public:
    using types = cache_types<Preset, Geometry>;
    using element_type = typename types::element_type;
    using pool = typename types::pool;
    using lane = typename types::lane;
    using runner = step_runner<types>;
    using store_type = store_of<types>;
    using lane_ref = typename runner::lane_ref;
    using config_type = cache_config<Preset>;

    shard() = default;
    shard(const shard&) = delete;
    shard& operator=(const shard&) = delete;

    using ahead = kvtl::ahead;
    using memory = shard_memory<types>;

    void init(const cache_plan& p, const config_type& config, const Geometry& geometry, std::uint32_t index,
              typename types::device& device, const typename types::lane_table& lanes, carver& metadata,
              carver& scratch, std::span<std::byte> frames, std::span<pool> pools,
              std::uint64_t data_offset) noexcept {
        plan_ = p;
        index_ = index;
        const memory m = memory::take(p, metadata, scratch);
        memory_ = m;
        const auto format = types::page_format_of(p.device_page, p.sizes);
        codec_ = typename types::codec(config.compressor, record_shape{p.model.lane_heads, p.model.dim});
        cluster_ = typename types::clusterer_state(config.clusterer, geometry);
        auto index_config = config.index;
        if constexpr (requires { index_config.first_position; }) index_config.first_position = p.sizes.sinks;
        index_state_ = typename types::index_state(index_config, geometry);
        select_ = typename types::selector_state(config.selector, geometry);
        rest_ = typename types::remainder_state(config.remainder, geometry);
        if (!p.window_only)
            layout_ = typename types::layout_state(config.layout, {p.file_pages, p.grow_pages, p.unit_pages},
                                                   m.layout);
        make_pools(config, format, frames, pools, metadata);
        const auto step_pages =
            static_cast<std::uint32_t>(std::max<std::uint64_t>(1, file_map::step_bytes / format.page_bytes));
        const file_map map{data_offset, format.page_bytes, step_pages, index, p.shards};
        io_ =
            typename types::transfers(device.queue(index), map, m.checksum, m.trash, p.gap_pages, m.flights);
        const typename page_store<types>::parts store_parts{
            format,  types::plain_format_of(p.device_page, p.sizes),
            &codec_, &layout_,
            &io_,    &device,
            pools_,  m.bounce,
            &lanes,  &stats_,
            0};
        if (p.time_phases) clock_ = phase_clock(stats_.phase_ns);
        sums_ = summaries<types>(index_state_, rest_, lanes, p.model.summaries(p.max_entries), m.sums);
        choose_ = chooser<types>(p.model, index_state_, select_, m.choose);
        if constexpr (types::sequential) {
            store_ = store_type(typename store_type::parts{store_parts,
                                                           types::slot_format_of(p.sizes, p.max_entries),
                                                           page_pools_, &sums_, p.spare_pages});
            growth_ = growth_of<types>(store_, sums_, m.growth);
        } else {
            store_ = store_type(store_parts);
            growth_ = growth_of<types>(store_, cluster_, sums_, m.growth);
            prompt_ = prompt_builder<types>(
                store_, {p.model, p.sizes, p.attend_tokens, &cluster_, &growth_, &choose_, &sums_});
        }
        store_.set_first_write_flight(runner::store::step_flights + p.prefetches);
        auto parts = memory::step_parts(p);
        parts.growth = &growth_;
        parts.choose = &choose_;
        parts.sums = &sums_;
        parts.rest = &rest_;
        parts.clock = p.time_phases ? &clock_ : nullptr;
        step_ = runner(store_, parts, m.step);
        source_ = choice_source<types>(step_, store_, plan_);
    }

    /// Hands the index what was fitted offline, before the first key.
    void bind(const calibration_view& calibration) noexcept {
        if constexpr (requires { index_state_.bind(calibration); }) index_state_.bind(calibration);
        static_cast<void>(calibration);
    }

    // ----------------------------------------------------------------------------------------------------
    // the calls
    [[nodiscard]] status attend(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::span<float> out) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        ready();
        // Entries that found no place last time are placed now, which must not meet units whose reads are in
        // the air.
        if (window_overflows(lanes)) release_all_aheads();
        if (status s = accept(lanes, 1); !s) return s;
        const statistics before = stats_;
        const phase_clock::span timed(plan_.time_phases ? &clock_ : nullptr, &phase_times::append);
        for (const lane_ref& ref : lanes) step_.encode_arrival(ref, in, 0);
        ahead* a = find_ahead(slot, layer);
        status done = source_.choose(lanes, in.q.data(), 1, layer, a);
        const bool chosen = done.ok();
        if (chosen) {
            step_.force_full_buffers(lanes, plan_.buffer_limit);
            done = step_.attend(lanes, in.q.data(), out, a != nullptr ? a->flight : none, in.lse);
        }
        const bool read_ahead = anything_ahead();
        release(a, lanes, chosen ? runner::fate::attended : runner::fate::dropped);
        if (chosen && read_ahead &&
            done.code() == errc::bound_too_small) { // what was read ahead held the frames
            release_all_aheads();
            stats_ = before;
            done = step_.attend(lanes, in.q.data(), out, none, in.lse);
        }
        if (!done) {
            stats_ = before;
            return done;
        }
        ++stats_.steps;
        if (layer == 0) pool_for(lanes).replacement().tick();
        step_.commit(lanes, plan_.buffer_limit);
        note_storage();
        return {};
    }

    [[nodiscard]] status append(std::uint32_t slot, std::uint32_t layer, const layer_input& in) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        ready();
        release(find_ahead(slot, layer), lanes, runner::fate::dropped);
        if (status s = accept(lanes, 1); !s) return s;
        if (layer == 0) pool_for(lanes).replacement().tick();
        for (const lane_ref& ref : lanes)
            if (status s = step_.append_turn(ref, in, 1, plan_.buffer_limit); !s) return s;
        note_storage();
        return {};
    }

    [[nodiscard]] status prefetch(std::uint32_t slot, std::uint32_t layer,
                                  std::span<const float> q) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty() || plan_.window_only) return {};
        ready();
        if (status s = check_complete(lanes); !s) return s;
        ahead* a = find_ahead(slot, layer);
        release(a, lanes, runner::fate::dropped);
        a = free_ahead();
        if (a == nullptr) return {}; // a hint: nothing is free to carry it
        for (const lane_ref& ref : lanes)
            if (should_found(store_.at(ref.id))) return {}; // attend() will cluster this lane first
        if (status s = source_.guess(lanes, q.data(), 1, layer); !s) return s;
        a->slot = slot, a->layer = layer;
        a->flight = runner::store::step_flights + static_cast<std::uint32_t>(a - memory_.aheads.data());
        a->complete = true;
        std::copy(q.begin(), q.end(), a->query.begin());
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            a->count[i] = step_.chosen_count(i);
            std::copy_n(step_.chosen_of(i).begin(), a->count[i],
                        a->chosen.begin() + i * plan_.chosen_per_lane);
        }
        io_.at(a->flight).clear();
        status s = step_.prefetch(lanes, a->flight);
        if (!s) release(a, lanes, runner::fate::dropped);
        return s;
    }

    /// Brings the units chosen for q in and pins them; views() lists what the engine attends.
    [[nodiscard]] status select(std::uint32_t slot, std::uint32_t layer, std::span<const float> q) noexcept {
        release_selection();
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        ready();
        if (status s = check_complete(lanes); !s) return s;
        release(find_ahead(slot, layer), lanes, runner::fate::dropped);
        ahead* a = free_ahead();
        if (a == nullptr)
            return status::failure(errc::out_of_range,
                                   "select: %u prefetches are outstanding, no room for one more",
                                   plan_.prefetches);
        if (status s = step_.choose(lanes, q.data(), 0); !s) return s;
        a->slot = slot, a->layer = layer, a->complete = false;
        a->flight = runner::store::step_flights + static_cast<std::uint32_t>(a - memory_.aheads.data());
        io_.at(a->flight).clear();
        status s = step_.prefetch(lanes, a->flight);
        if (s.ok() && !step_.all_planned(lanes, a->flight))
            s = status::failure(errc::bound_too_small,
                                "select: the chosen units do not fit in %u frames at once; raise "
                                "memory_bytes or lower attend_tokens",
                                plan_.frames);
        if (s.ok()) s = step_.land_prefetch(lanes, a->flight);
        if (!s) {
            release(a, lanes, runner::fate::dropped);
            return s;
        }
        selection_ = a;
        return {};
    }

    /// Calls visit(kv head, keys, values) for every block of rows of the current selection and of DRAM. Rows
    /// that are no records are decoded for the visit and last as long as it does.
    template <class Visit> void views(std::uint32_t slot, std::uint32_t layer, Visit&& visit) noexcept {
        static_assert(!types::weighted, "[kvtl] select: rows do not show the weights of entries");
        const auto lanes = lanes_of(slot, layer);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_.at(lanes[i].id);
            const lane_state& s = l.state();
            const auto block = [&](const element_type* k, const element_type* v, std::uint32_t rows) {
                for (std::uint32_t h = 0; rows > 0 && h < plan_.model.lane_heads; ++h) {
                    const std::size_t at = std::size_t{h} * plan_.model.dim;
                    visit(lanes[i].in_layer * plan_.model.lane_heads + h,
                          rows_view<element_type>{k + at, rows, plan_.model.dim, plan_.model.width()},
                          rows_view<element_type>{v + at, rows, plan_.model.dim, plan_.model.width()});
                }
            };
            block(l.sink_k(0), l.sink_v(0), s.sinks);
            for (std::uint32_t from = s.window_begin; from < s.tokens;) {
                const std::uint32_t rows =
                    std::min(s.tokens - from, plan_.sizes.window + plan_.sizes.spare - l.ring(from));
                block(l.window_k(from), l.window_v(from), rows);
                from += rows;
            }
            block(l.buffer_k(0), l.buffer_v(0), s.buffered);
            if (selection_ == nullptr) continue;
            const pool& frames = store_.pool_of(lanes[i].id);
            for (const work_item& w : io_.at(selection_->flight).items()) {
                if (w.lane != i) continue;
                const auto& format = store_.unit_format();
                std::uint32_t left = store_.entries_of(l, w.unit);
                for (std::uint32_t f = l.residency(w.unit).frames; left > 0; f = frames[f].next) {
                    const std::byte* page = frames.bytes(f);
                    const std::uint32_t rows = format.entries_in(page, left);
                    memory_.shown.show(codec_, format.keys(page, 0, rows), format.values(page, 0, rows),
                                       [&](std::size_t, const element_type* k, const element_type* v,
                                           std::size_t n) { block(k, v, static_cast<std::uint32_t>(n)); });
                    left -= rows;
                }
            }
        }
    }

    [[nodiscard]] status prefill(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, std::span<float> out, bool last) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        ready();
        if (plan_.window_only) return prefill_window(lanes, in, tokens, out);
        release_all_aheads();
        if constexpr (types::sequential) {
            static_cast<void>(last);
            return prefill_groups(lanes, in, tokens, out);
        } else {
            const lane first = store_.at(lanes[0].id);
            if (first.state().tokens > 0) return prefill_turn(lanes, in, tokens, out);
            return prefill_prompt(lanes, in, tokens, out, last);
        }
    }

    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for (const lane_ref& ref : lanes_of(slot, layer)) {
            const lane_state& s = store_.at(ref.id).state();
            if (n > s.tokens - s.window_begin)
                return status::failure(errc::out_of_range,
                                       "rewind: n is %u; layer %u can give up %u tokens (its window)", n,
                                       layer, s.tokens - s.window_begin);
        }
        return {};
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for (const lane_ref& ref : lanes_of(slot, layer)) store_.at(ref.id).state().tokens -= n;
    }

    [[nodiscard]] status retry_writes(std::uint32_t slot) noexcept {
        release_selection();
        return store_.retry_writes(write_pool_at(slot));
    }

    /// Forgets a sequence: its pages, frames and tables.
    void end(std::uint32_t slot) noexcept {
        release_all_aheads();
        store_.settle_all_writes(write_pool_at(slot));
        for (std::uint32_t layer = 0; layer < plan_.model.layers; ++layer)
            for (const lane_ref& ref : lanes_of(slot, layer)) store_.forget_lane(ref.id);
    }

    [[nodiscard]] statistics stats(std::size_t fixed_bytes) const noexcept {
        statistics s = stats_;
        const io_counters c = io_.counters();
        s.reads = c.reads, s.read_bytes = c.read_bytes, s.writes = c.writes, s.written_bytes = c.write_bytes;
        s.resident_bytes_peak = fixed_bytes;
        for (std::uint32_t slot = 0; slot < plan_.max_sequences; ++slot)
            for (std::uint32_t layer = 0; layer < plan_.model.layers; ++layer)
                for (std::uint32_t i = index_; i < plan_.model.lanes() && !plan_.window_only;
                     i += plan_.shards)
                    s.units += store_.at((slot * plan_.model.layers + layer) * plan_.model.lanes() + i)
                                   .state()
                                   .units;
        for (const pool& p : pools_) s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
        for (const pool& p : page_pools_) s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
        return s;
    }

    /// Tokens of a lane of this shard, for checks and tests; `none` when the shard owns no lane of the layer.
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return none;
        const lane_state& s = store_.at(lanes[0].id).state();
        return s.tokens + s.staged;
    }
    [[nodiscard]] store_of<types>& store() noexcept { return store_; }
    [[nodiscard]] growth_of<types>& growth() noexcept { return growth_; }

  private:
    /// The lanes of a layer that this shard owns. Layer-wide lanes belong to the shard of their sequence.
    [[nodiscard]] std::span<const lane_ref> lanes_of(std::uint32_t slot, std::uint32_t layer) noexcept {
        return list_lanes(slot, layer, memory_.lanes);
    }
    [[nodiscard]] std::span<const lane_ref> list_lanes(std::uint32_t slot, std::uint32_t layer,
                                                       std::span<lane_ref> into) const noexcept {
        const std::uint32_t lanes = plan_.model.lanes(), base = (slot * plan_.model.layers + layer) * lanes;
        std::uint32_t n = 0;
        if constexpr (types::unit_of == granularity::layer) {
            if (slot % plan_.shards == index_) into[n++] = {base, 0};
        } else {
            for (std::uint32_t i = index_; i < lanes; i += plan_.shards) into[n++] = {base + i, i};
        }
        return into.first(n);
    }
    [[nodiscard]] pool& pool_for(std::span<const lane_ref> lanes) noexcept {
        return store_.pool_of(lanes[0].id);
    }
    [[nodiscard]] pool& pool_at(std::uint32_t slot) noexcept { return pools_[pools_.size() == 1 ? 0 : slot]; }
    /// The pool whose frames carry a sequence's writes.
    [[nodiscard]] pool& write_pool_at(std::uint32_t slot) noexcept {
        if constexpr (types::sequential)
            return page_pools_[pools_.size() == 1 ? 0 : slot];
        else
            return pool_at(slot);
    }

    /// Divides the shard's frames among its pools. Lanes of fixed groups have two kinds: page frames, then
    /// slots.
    void make_pools(const config_type& config, const page_format& format, std::span<std::byte> frames,
                    std::span<pool> pools, carver& metadata) noexcept {
        const std::size_t pool_bytes = std::size_t{plan_.frames} * format.page_bytes;
        const std::size_t kinds = types::sequential ? 2 : 1;
        pools_ = pools.first(pools.size() / kinds);
        page_pools_ = pools.subspan(pools_.size());
        for (std::uint32_t i = 0; i < pools_.size(); ++i) {
            const auto part = frames.subspan(i * pool_bytes, pool_bytes);
            if constexpr (types::sequential) {
                const auto slot = types::slot_format_of(plan_.sizes, plan_.max_entries);
                const std::size_t carriers = std::size_t{plan_.page_frames} * format.page_bytes;
                page_pools_[i] = pool(config.replacement, part.first(carriers), format.page_bytes, 1,
                                      plan_.page_frames, metadata);
                pools_[i] = pool(config.replacement,
                                 part.subspan(carriers, std::size_t{plan_.slots} * slot.page_bytes),
                                 slot.page_bytes, 1, 1, metadata);
            } else {
                pools_[i] = pool(config.replacement, part, format.page_bytes, plan_.unit_pages,
                                 plan_.tail_frames, metadata);
            }
        }
    }

    /// Every call ends the previous selection and takes note of what landed meanwhile.
    void ready() noexcept {
        release_selection();
        io_.poll(false);
    }

    /// What must hold before entries are accepted: no failed write, room on storage, the lane clustered when
    /// it is time.
    status accept(std::span<const lane_ref> lanes, std::uint32_t tokens) noexcept {
        if (plan_.window_only) return {};
        if (status s = check_complete(lanes); !s) return s;
        pool& writes = store_.write_pool(lanes[0].id);
        if (store_.has_failed_writes(writes)) return store_.write_error(writes);
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
        if constexpr (types::clusterer::founds)
            for (const lane_ref& ref : lanes) {
                if (!should_found(store_.at(ref.id))) continue;
                release_all_aheads();
                if (status s = prompt_.begin(pool_for(lanes), plan_.sizes.max_tokens); !s) return s;
                if (status s = prompt_.found(ref.id); !s) return s;
            }
        return {};
    }
    [[nodiscard]] bool window_overflows(std::span<const lane_ref> lanes) const noexcept {
        return std::any_of(lanes.begin(), lanes.end(),
                           [this](const lane_ref& ref) { return growth_.overdue(store_.at(ref.id)); });
    }
    [[nodiscard]] status check_complete(std::span<const lane_ref> lanes) const noexcept {
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
        if constexpr (types::clusterer::founds)
            return !l.state().founded && cluster_.ready(l.state().window_begin - l.state().sinks);
        else
            return false;
    }

    status prefill_window(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                          std::span<float> out) noexcept {
        for (const lane_ref& ref : lanes) {
            const lane l = store_.at(ref.id);
            const std::uint32_t before = l.state().tokens;
            for (std::uint32_t t = 0; t < tokens; ++t) {
                step_.encode_arrival(ref, in, t);
                ++l.state().tokens;
            }
            if (!out.empty())
                attend_prompt(plan_.model, ref.in_layer, in, before, tokens, l.window_k(0), l.window_v(0),
                              out, memory_.causal);
        }
        return {};
    }

    status prefill_prompt(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                          std::span<float> out, bool last) noexcept {
        pool& frames = pool_for(lanes);
        if (store_.has_failed_writes(frames)) return store_.write_error(frames);
        const std::uint32_t before = store_.at(lanes[0].id).state().staged, total = before + tokens;
        if (status s = prompt_.begin(frames, total); !s) return s;
        const page_format& format = store_.plain_format();
        status done;
        std::uint32_t organised = 0;
        for (const lane_ref& ref : lanes) {
            const lane l = store_.at(ref.id);
            const bool all = last || !out.empty();
            const std::uint32_t from = all ? 0 : before / format.rows * format.rows;
            if (done = prompt_.load_staged(l, from, before); !done) break;
            prompt_.encode(ref.in_layer, in, before, tokens);
            if (!out.empty()) prompt_.attend(ref.in_layer, in, before, tokens, out);
            done = last ? prompt_.organise(ref.id, ref.in_layer, in, total, tokens)
                        : prompt_.stage(l, before, total);
            if (!done) break;
            ++organised;
            note_storage();
        }
        if (!done) { // as it was before: earlier chunks are still staged
            if (last)
                for (std::uint32_t i = 0; i < organised; ++i) prompt_.forget_units(store_.at(lanes[i].id));
            return done;
        }
        for (const lane_ref& ref : lanes) {
            if (last)
                prompt_.commit(store_.at(ref.id), total);
            else
                store_.at(ref.id).state().staged = total;
        }
        return {};
    }

    status prefill_turn(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                        std::span<float> out) noexcept {
        if (status s = accept(lanes, tokens); !s) return s;
        const statistics before = stats_;
        if (!out.empty())
            for (const lane_ref& ref : lanes)
                if (status s = step_.attend_turn(ref, in, tokens, out); !s) {
                    stats_ = before;
                    return s;
                }
        for (const lane_ref& ref : lanes) {
            status s = step_.append_turn(ref, in, tokens, plan_.buffer_limit);
            if (s.ok()) continue;
            // Lanes differ now, and attention over what came before cannot be had again: say so from here on.
            for (const lane_ref& other : lanes) store_.at(other.id).state().cut_short = true;
            return s;
        }
        note_storage();
        return {};
    }

    /// Fixed groups: a prompt is nothing but many tokens. A first chunk that fails leaves an empty sequence.
    status prefill_groups(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens,
                          std::span<float> out) noexcept {
        const bool first = store_.at(lanes[0].id).state().tokens == 0;
        if constexpr (detail::fits_lane<typename types::index>())
            if (first) fit_index(lanes, in, tokens);
        status done = prefill_turn(lanes, in, tokens, out);
        if (done.ok() || !first) return done;
        store_.settle_all_writes(store_.write_pool(lanes[0].id));
        for (const lane_ref& ref : lanes) store_.forget_lane(ref.id);
        return done;
    }

    /// The index fits its codebook or basis to a lane's first keys; the slots, empty now, lend it their
    /// memory.
    void fit_index(std::span<const lane_ref> lanes, const layer_input& in, std::uint32_t tokens) noexcept {
        if constexpr (detail::fits_lane<typename types::index>()) {
            pool& slots = pool_for(lanes);
            store_.vacate(slots);
            slots.note_used(static_cast<std::uint32_t>(
                std::min<std::size_t>(slots.size(), plan_.fit_bytes / slots.frame_bytes() + 1)));
            const std::size_t stride = std::size_t{plan_.model.kv_heads} * plan_.model.dim;
            for (const lane_ref& ref : lanes)
                index_state_.fit(sums_.index_of(ref.id),
                                 rows_view<float>{in.k.data() + plan_.model.key_offset(ref.in_layer), tokens,
                                                  plan_.model.width(), stride},
                                 slots.memory());
        } else {
            static_cast<void>(lanes), static_cast<void>(in), static_cast<void>(tokens);
        }
    }

    void note_storage() noexcept {
        if (plan_.window_only) return;
        stats_.storage_bytes = std::max<std::uint64_t>(stats_.storage_bytes, std::uint64_t{layout_.used()} *
                                                                                 store_.format().page_bytes);
    }

    // ------------------------------------------------------------------------------------------------
    // reading ahead
    [[nodiscard]] ahead* find_ahead(std::uint32_t slot, std::uint32_t layer) noexcept {
        for (ahead& a : memory_.aheads)
            if (a.flight != none && a.slot == slot && a.layer == layer) return &a;
        return nullptr;
    }
    [[nodiscard]] ahead* free_ahead() noexcept {
        for (ahead& a : memory_.aheads)
            if (a.flight == none) return &a;
        return nullptr;
    }
    [[nodiscard]] bool anything_ahead() const noexcept {
        return std::any_of(memory_.aheads.begin(), memory_.aheads.end(),
                           [](const ahead& a) { return a.flight != none; });
    }
    void release(ahead* a, std::span<const lane_ref> lanes, typename runner::fate end) noexcept {
        if (a == nullptr) return;
        step_.release_flight(lanes, a->flight, end);
        a->flight = none;
    }
    void release_selection() noexcept {
        if (selection_ == nullptr) return;
        ahead* a = std::exchange(selection_, nullptr);
        release(a, list_lanes(a->slot, a->layer, memory_.other_lanes), runner::fate::shown);
    }
    void release_all_aheads() noexcept {
        release_selection();
        for (ahead& a : memory_.aheads)
            if (a.flight != none)
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
    typename types::remainder_state rest_{};
    summaries<types> sums_;
    phase_clock clock_;
    store_type store_;
    growth_of<types> growth_;
    chooser<types> choose_;
    prompt_builder<types> prompt_; ///< clusters: groups need none
    runner step_;
    choice_source<types> source_;
    statistics stats_;
    ahead* selection_ = nullptr;
};

}} // namespace kvtl::v0
