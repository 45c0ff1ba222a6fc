// The part of a shard whose entries are units on storage: prompts become units, steps choose among them.
//
// What:   each lane has sinks, a window, entries that wait, and units, which are resident or not. Nothing of this is
//         shared with other shards but the file.
// Errors: a failed call leaves tokens, units and statistics as they were, but for its time and wasted_bytes; a further turn
//         whose writes fail half-way is the exception (manager.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/save/hot_set.hpp>
#include <kvtl/core/save/lane_parts.hpp>
#include <kvtl/core/step/retrieval_prompts.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class retrieval_stage : public retrieval_prompts<Types> {
    using base = retrieval_prompts<Types>;
    using base::accept, base::announce_next, base::any_prefetch, base::begin_call, base::bring,
        base::check_complete, base::clock, base::find_prefetch, base::free_prefetch_slot, base::group_of,
        base::lanes_of, base::leaver, base::list_lanes, base::note_storage, base::pool_for, base::release,
        base::release_all_prefetches, base::release_selection, base::should_found, base::window_overflows,
        base::write_pools_at;
    using base::arenas_, base::bars_, base::codec_, base::io_, base::memory_, base::page_pools_, base::plan_,
        base::pools_, base::selection_, base::source_, base::stats_, base::step_, base::store_;

  public:
    using types = Types;
    using element_type = typename base::element_type;
    using pool = typename base::pool;
    using lane = typename base::lane;
    using runner = typename base::runner;

    /// The prompt of a layer is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        const lane_state& s = store_.at(lanes[0].id).state();
        if (s.prompt_open)
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt is not complete: %u tokens wait for a prefill with "
                                   "last_chunk = true",
                                   call, s.tokens);
        return check_complete(lanes);
    }
    [[nodiscard]] status attend(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out) noexcept {
        if constexpr (runner::by_name)
            if (status s = check_names(slot, layer, in.chosen, tokens); !s) return s;
        if (tokens == 1 || lanes_of(slot, layer).empty()) return step(slot, layer, in, out);
        if (tokens > plan_.sizes.window) // a failed one gives up those before it
            return status::failure(errc::invalid_argument,
                                   "attend: k has %u tokens; valid: 1 to window_tokens = %u", tokens,
                                   plan_.sizes.window);
        const statistics before = stats_;
        const std::size_t row = out.size() / tokens;
        for (std::uint32_t t = 0; t < tokens; ++t) {
            status done = step(slot, layer, in.rows(t, 1, tokens), out.subspan(t * row, row));
            if (done.ok()) continue;
            if (check_rewind(slot, layer, t).ok())
                rewind(slot, layer, t);
            else // before the window there is nothing to read, so that this cannot be
                for (const lane_ref& ref : lanes_of(slot, layer)) store_.at(ref.id).state().cut_short = true;
            restore(before);
            return done;
        }
        return {};
    }

    [[nodiscard]] status step(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                              const tensor_span& out) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        begin_call();
        // Entries that found no place last time are placed now, which must not meet units whose reads are in
        // the air.
        if (window_overflows(lanes)) release_all_prefetches();
        if (status s = bring(slot, layer); !s) return s;
        timed.enter(&phase_times::maintain);
        if (status s = accept(lanes, 1); !s) return s;
        const statistics before = stats_;
        timed.enter(&phase_times::append);
        for (const lane_ref& ref : lanes) step_.encode_arrival(ref, step_.rows_of(ref, in)(0));
        prefetch_slot* a = find_prefetch(slot, layer);
        const float* q = step_.widen(in.q);
        step_.name_units(in.chosen);
        status done = source_.choose(lanes, q, 1, layer, a);
        step_.name_units({});
        const bool chosen = done.ok();
        if (chosen) {
            step_.force_full_buffers(lanes, plan_.buffer_limit);
            step_.foresee(lanes);
            // What the next layer keeps is read in once the misses of this one have landed.
            done = step_.attend(lanes, q, in, out, a != nullptr ? a->io_batch : none,
                                [&] { announce_next(slot, layer); });
        }
        const bool read_ahead = any_prefetch();
        release(a, lanes, chosen ? runner::fate::attended : runner::fate::dropped);
        if (chosen && read_ahead &&
            done.code() == errc::bound_too_small) { // what was read ahead held the frames
            release_all_prefetches();
            const choice_counts choosing = stats_.choosing; // what was chosen still holds
            restore(before);
            stats_.choosing = choosing;
            done = step_.attend(lanes, q, in, out, none, [] {});
        }
        if (!done) {
            restore(before);
            return done;
        }
        ++stats_.steps;
        bars_.note_step(slot, layer, step_.facts(lanes));
        arenas_.note_call(slot, layer);
        tick(lanes, layer);
        step_.commit(lanes, plan_.buffer_limit);
        note_storage();
        return {};
    }

    [[nodiscard]] status append(std::uint32_t slot, std::uint32_t layer, const layer_input& in) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        begin_call();
        if (window_overflows(lanes)) release_all_prefetches(); // as in step()
        // What a select() behind this will choose may be among it, and stays where anything does.
        release(find_prefetch(slot, layer), lanes,
                types::keeps_nothing ? runner::fate::dropped : runner::fate::shown);
        if (status s = bring(slot, layer); !s) return s;
        timed.enter(&phase_times::maintain);
        if (status s = accept(lanes, 1); !s) return s;
        tick(lanes, layer);
        for (const lane_ref& ref : lanes)
            if (status s = step_.append_turn(ref, 1, plan_.buffer_limit, step_.rows_of(ref, in)); !s)
                return s;
        timed.enter(&phase_times::fetch_wait);
        announce_next(slot, layer);
        arenas_.note_call(slot, layer);
        note_storage();
        return {};
    }

    /// The engine is about to compute this layer's query: what the layer keeps resident is read in, where memory
    /// is lent to layers in turn. A hint; what does not come is read when it is attended.
    void before_query(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (arenas_.idle() || lanes_of(slot, layer).empty()) return;
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        io_.poll(false);
        arenas_.tell(slot, layer);
        arenas_.turn_to(group_of(slot), layer);
        arenas_.announce(group_of(slot), layer, leaver(slot));
    }

    [[nodiscard]] status prefetch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        // Layer 0's query nobody guesses. A guess for others that go by their own would be read in vain.
        if (predicts && layer > 0 && layer < plan_.true_layers) return {};
        if (runner::by_name) return {};
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        begin_call();
        if (status s = check_complete(lanes); !s) return s;
        release(find_prefetch(slot, layer), lanes, runner::fate::dropped);
        return read_ahead(lanes, slot, layer, q);
    }

    /// A step with this query comes, perhaps after others: what it chooses is read meanwhile. A hint. False when frames or
    /// prefetches do not suffice for more: what comes later would only push out what others find resident.
    [[nodiscard]] bool prefetch_for_batch(std::uint32_t slot, std::uint32_t layer,
                                          const tensor_view& q) noexcept {
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty() || runner::by_name || (predicts && layer >= plan_.true_layers)) return true;
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        begin_call();
        if (find_prefetch(slot, layer) != nullptr || !check_complete(lanes).ok() || window_overflows(lanes))
            return true;
        static_cast<void>(read_ahead(lanes, slot, layer, q)); // what is wrong the step will say
        prefetch_slot* a = find_prefetch(slot, layer);
        if (a == nullptr) return false;
        a->announced = true;
        return step_.all_planned(lanes, a->io_batch);
    }
    /// Gives up what was announced for steps that have not come: of a batch that failed.
    void cancel_prefetch() noexcept {
        for (prefetch_slot& a : memory_.prefetch_slots)
            if (a.io_batch != none && a.announced)
                release(&a, list_lanes(a.slot, a.layer, memory_.other_lanes), runner::fate::dropped);
    }

    /// Brings the units chosen for q in and pins them; views() lists what the engine attends.
    [[nodiscard]] status select(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept {
        const phase_clock::span timed(clock(), &phase_times::fetch_wait);
        release_selection();
        const auto lanes = lanes_of(slot, layer);
        if (lanes.empty()) return {};
        begin_call();
        if (status s = check_complete(lanes); !s) return s;
        if (free_prefetch_slot() == nullptr && find_prefetch(slot, layer) == nullptr)
            release_all_prefetches();
        if (status s = bring(slot, layer); !s) return s;
        // What was read ahead for this query is pinned until what is chosen is. It has come first: scoring may read the
        // pages of the lane itself.
        prefetch_slot* guess = find_prefetch(slot, layer);
        if (guess != nullptr && !step_.land_prefetch(lanes, guess->io_batch).ok())
            release(std::exchange(guess, nullptr), lanes, runner::fate::dropped);
        status s = step_.choose(lanes, step_.widen(q), 0, false);
        if (!s || free_prefetch_slot() == nullptr)
            release(std::exchange(guess, nullptr), lanes,
                    s.ok() ? runner::fate::attended : runner::fate::dropped);
        if (!s) return s;
        prefetch_slot* a = free_prefetch_slot();
        a->slot = slot, a->layer = layer, a->complete = a->announced = false;
        s = show_chosen(lanes, *a);
        const bool in_the_way = guess != nullptr || base::any_prefetch_of(group_of(slot));
        release(guess, lanes, runner::fate::attended);
        if (s.code() == errc::bound_too_small && in_the_way) { // what was read ahead held the frames
            base::release_prefetches_of(group_of(slot));
            s = show_chosen(lanes, *a);
        }
        if (!s) return s;
        selection_ = a;
        announce_next(slot, layer);
        arenas_.note_call(slot, layer);
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
            step_.visit_window(l, s.tokens,
                               [&](const element_type* k, const element_type* v, const float*,
                                   std::uint32_t rows) { block(k, v, rows); });
            block(l.buffer_k(0), l.buffer_v(0), s.buffered);
            if (selection_ == nullptr) continue;
            for (const work_item& w : io_.at(selection_->io_batch).items()) {
                if (w.lane != i) continue;
                step_.visit_unit(lanes[i], w.unit, [&](const records_view& keys, const records_view& values) {
                    memory_.shown.show(store_.unit_codec(lanes[i].id), keys, values,
                                       [&](std::size_t, const element_type* k, const element_type* v,
                                           std::size_t n) { block(k, v, static_cast<std::uint32_t>(n)); });
                });
            }
        }
    }
    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked = {}) noexcept {
        for (const lane_ref& ref : lanes_of(slot, layer)) {
            const lane_state& s = store_.at(ref.id).state();
            if (s.staged >= n) continue; // chunks of a prompt, in token order
            if (n > s.tokens - s.window_begin)
                return status::failure(
                    errc::out_of_range,
                    "%s: %s is %zu; layer %u has %u tokens and can give up %u (its window)", asked.call,
                    asked.name, asked.value, plan_.numbers.of(layer), s.tokens, s.tokens - s.window_begin);
        }
        return {};
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for (const lane_ref& ref : lanes_of(slot, layer)) {
            lane_state& s = store_.at(ref.id).state();
            (s.staged > 0 ? s.staged : s.tokens) -= n;
            s.prompt_open = s.prompt_open && s.tokens > 0;
        }
    }

    [[nodiscard]] status retry_writes(std::uint32_t slot) noexcept {
        if (base::io_.gave_up()) return base::io_.no_answer();
        release_selection();
        for (pool& writes : write_pools_at(slot))
            if (status s = store_.retry_writes(writes); !s) return s;
        return arenas_.retry_writes(group_of(slot));
    }

    /// Before the memory goes. False: the device gave a transfer up, which may still write to it.
    [[nodiscard]] bool land_all() noexcept { return base::io_.land_all(); }

    /// Forgets a sequence: its pages, frames and tables.
    void end(std::uint32_t slot) noexcept {
        release_all_prefetches();
        arenas_.land(group_of(slot));
        for (pool& writes : write_pools_at(slot)) store_.settle_all_writes(writes);
        for (std::uint32_t layer = 0; layer < plan_.model.layers; ++layer)
            for (const lane_ref& ref : lanes_of(slot, layer)) store_.forget_lane(ref.id);
        if (base::lane_count(slot) > 0) store_.empty_tables(base::lane_at(slot, 0, 0).id);
        bars_.forget(slot);
        // Others that share the memory may have been kept waiting.
        static_cast<void>(arenas_.retry_writes(group_of(slot)));
    }

    /// What the lane that begins with a KV head of the model is, to or from a stream (core/save/sequence_parts.hpp). Nothing
    /// where it begins with another one. batch: memory for pages on their way.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
               std::span<std::byte> batch) noexcept {
        const std::uint32_t i = lane_of_head(slot, head);
        if (i == none) return;
        const lane_ref ref = base::lane_at(slot, layer, i);
        if (status s = io.loads() ? make_ready(slot, layer, ref) : at_rest(slot, layer, ref); !s)
            return io.fail(std::move(s));
        bars_.parts(io, slot, layer, i);
        lane_parts<types, typename base::store_type>(store_, io, batch).move(ref.id);
        if (!io.loads()) return;
        store_.pool_of(ref.id).borrow();
        note_storage();
    }

    /// Decisions about the sequence depend on which of its units are in memory, and a save keeps these.
    static constexpr bool keeps_hot_set = types::residency_decides && !types::virtualised;
    /// The sequence's frames are its own, and nothing of it is on its way.
    [[nodiscard]] bool has_hot_set(std::uint32_t slot) const noexcept {
        if constexpr (keeps_hot_set) {
            std::uint32_t sequences = 0;
            for (std::uint32_t s = 0; s < plan_.max_sequences; ++s)
                sequences += base::lane_count(s) > 0 ? 1U : 0U;
            return sequences == plan_.pool_groups() && base::lane_count(slot) > 0;
        }
        return false;
    }
    /// Which units of the sequence are in memory, to or from a stream. False where that cannot be told, or the pool is
    /// another one: nothing is written then, or no unit becomes resident.
    [[nodiscard]] bool hot_set_parts(part_stream& io, std::uint32_t slot, const pool_role& role) noexcept {
        if constexpr (keeps_hot_set) {
            if (!has_hot_set(slot)) return false;
            hot_set<types> hot(store_, base::lane_at(slot, 0, 0).id, role);
            if (io.loads()) return hot.load(io);
            if (!hot.at_rest()) return false;
            hot.save(io);
            return io.ok();
        }
        return false;
    }

    /// A save has the sequence as it is now.
    void note_saved(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < plan_.model.layers; ++layer)
            for (const lane_ref& ref : lanes_of(slot, layer)) store_.note_saved(ref.id);
    }

    /// A branch begins: what belongs to all of its layers.
    void begin_branch(std::uint32_t parent, std::uint32_t to) noexcept { bars_.copy(parent, to); }
    /// A branch will copy this layer: what that takes is kept for it. A failed write of its pages is found now. After an error
    /// some of it may be kept.
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        if (status s = base::check_writes(from); !s) return s;
        for (std::uint32_t i = 0; i < base::lane_count(to); ++i)
            if (status s =
                    store_.promise_copy(base::lane_at(from, layer, i).id, base::lane_at(to, layer, i).id,
                                        [&] { begin_call(), base::release_prefetches_of(group_of(to)); });
                !s) {
                while (i-- > 0)
                    store_.withdraw_copy(base::lane_at(from, layer, i).id, base::lane_at(to, layer, i).id);
                return s;
            }
        return {};
    }
    /// The branch does not copy the layer any more, or has copied it.
    void withdraw_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        for (std::uint32_t i = 0; i < base::lane_count(to); ++i)
            store_.withdraw_copy(base::lane_at(from, layer, i).id, base::lane_at(to, layer, i).id);
    }
    /// That was the last layer.
    void withdraw_copies(std::uint32_t to) noexcept {
        if (base::lane_count(to) > 0) store_.withdraw_copies(base::lane_at(to, 0, 0).id);
    }
    /// The layer of a branch, which is empty, becomes what its parent's is, and shares pages with it. Open pages of units are
    /// written first. Fails where a device fails, and the layer is empty then.
    [[nodiscard]] status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        const std::uint32_t lanes = base::lane_count(to);
        if (lanes == 0) return {};
        begin_call();
        if (status s = bring(from, layer); !s) return s;
        store_.put_away_tails(base::lane_at(from, layer, 0).id);
        if (status s = settle_writes(from); !s) return s;
        if constexpr (types::sequential || types::virtualised) base::release_prefetches_of(group_of(to));
        status done = base::lend_to_prompt(to, layer);
        if (!done) return done;
        for (std::uint32_t i = 0; i < lanes && done.ok(); ++i)
            done = store_.copy_lane(base::lane_at(from, layer, i).id, base::lane_at(to, layer, i).id);
        if (!done) {
            for (std::uint32_t i = 0; i < lanes; ++i) store_.forget_lane(base::lane_at(to, layer, i).id);
            return done;
        }
        withdraw_copy(from, to, layer);
        if constexpr (!types::sequential) store_.pool_of(base::lane_at(to, layer, 0).id).borrow();
        note_storage();
        return {};
    }

    /// Nothing is read ahead any more, and no transfer is under way. Fails when a write has failed.
    [[nodiscard]] status come_to_rest() noexcept {
        begin_call();
        base::release_all_prefetches();
        for (const std::span<pool> kind : {pools_, page_pools_})
            for (pool& p : kind) store_.settle_all_writes(p);
        for (const std::span<pool> kind : {pools_, page_pools_})
            for (const pool& p : kind)
                if (store_.has_failed_writes(p)) return store_.write_error(p);
        return {};
    }
    /// From now on each pool has so many frames, those among them that carry pages of fixed groups, and the system has the
    /// memory of the others. False when it does not take that. After come_to_rest(). `large`: of frames that come, in large pages.
    [[nodiscard]] bool limit_frames(std::uint32_t frames, bool large) noexcept {
        plan_.frames = frames;
        for (pool& p : pools_) {
            std::uint32_t n = frames;
            if constexpr (types::sequential)
                n = std::min(p.own(),
                             static_cast<std::uint32_t>(std::size_t{frames - plan_.page_frames} *
                                                        store_.format().page_bytes / p.frame_bytes()));
            store_.limit_frames(p, n, large);
        }
        if constexpr (!types::sequential) {
            const std::uint32_t pages = std::min(plan_.io_batch_pages, plan_.io_batch_pages_for(frames / 2));
            for (std::uint32_t i = 0; i < runner::store::step_io_batches + plan_.prefetches; ++i)
                io_.at(i).limit(pages);
        }
        return std::all_of(pools_.begin(), pools_.end(),
                           [](const pool& p) { return reservation::give_back(p.memory_away()); });
    }

    /// What has been counted, without what lanes and frames hold.
    [[nodiscard]] statistics counted() const noexcept {
        statistics s = stats_;
        const io_counters c = io_.counters();
        s.reads = c.reads, s.read_bytes = c.read_bytes, s.writes = c.writes, s.written_bytes = c.write_bytes;
        return s;
    }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s = counted();
        for (std::uint32_t slot = 0; slot < plan_.max_sequences; ++slot)
            for (std::uint32_t layer = 0; layer < plan_.model.layers; ++layer) add_held(s, slot, layer);
        if (!arenas_.idle()) {
            arenas_.add_to(s);
            s.resident_bytes_peak += arenas_.peak_bytes();
            return s;
        }
        for (const pool& p : pools_) {
            s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
            s.borrowed_bytes += std::size_t{p.borrowed()} * p.frame_bytes();
        }
        for (const pool& p : page_pools_) s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
        return s;
    }

    /// Adds what a layer holds now.
    void add_held(statistics& s, std::uint32_t slot, std::uint32_t layer) const noexcept {
        for (std::uint32_t i = 0; i < base::lane_count(slot); ++i) {
            const lane l = store_.at(base::lane_at(slot, layer, i).id);
            s.kept_bytes += bytes_of(l);
            s.units += l.state().units;
            if constexpr (types::drops)
                s.kept_entries += std::uint64_t{l.state().tokens} * plan_.model.lane_heads;
        }
    }

  private:
    /// A lane can be saved: it is complete, and what is written of it has been.
    [[nodiscard]] status at_rest(std::uint32_t slot, std::uint32_t layer, const lane_ref& ref) noexcept {
        if (status s = check_complete({&ref, 1}); !s) return s;
        if (status s = bring(slot, layer); !s) return s;
        return settle_writes(slot);
    }
    /// Waits for the writes of a sequence.
    [[nodiscard]] status settle_writes(std::uint32_t slot) noexcept {
        for (pool& writes : write_pools_at(slot)) store_.settle_all_writes(writes);
        return base::check_writes(slot);
    }
    /// The shard's lane that begins with a KV head of the model, or none.
    [[nodiscard]] std::uint32_t lane_of_head(std::uint32_t slot, std::uint32_t head) const noexcept {
        for (std::uint32_t i = 0; i < base::lane_count(slot); ++i)
            if (base::lane_at(slot, 0, i).in_layer * plan_.model.lane_heads == head) return i;
        return none;
    }
    /// A lane can be loaded: the frames of its pool are empty, and its tables may grow.
    [[nodiscard]] status make_ready(std::uint32_t slot, std::uint32_t layer, const lane_ref& ref) noexcept {
        begin_call();
        release_all_prefetches();
        if (status s = base::lend_to_prompt(slot, layer); !s) return s;
        if constexpr (!types::sequential) return store_.vacate(store_.pool_of(ref.id));
        return {};
    }
    /// Reads what select() has chosen and pins it, all of it, or nothing.
    [[nodiscard]] status show_chosen(std::span<const lane_ref> lanes, prefetch_slot& a) noexcept {
        a.io_batch =
            runner::store::step_io_batches + static_cast<std::uint32_t>(&a - memory_.prefetch_slots.data());
        io_.at(a.io_batch).clear();
        status s = step_.prefetch(lanes, a.io_batch);
        if (s.ok() && !step_.all_planned(lanes, a.io_batch))
            s = status::failure(errc::bound_too_small,
                                "select: the chosen units do not fit in %u frames at once, or %u pages are "
                                "not all that has to be read for them; lower attend_tokens, or raise "
                                "memory_bytes (pages: half of the frames, at most 512)",
                                plan_.frames, io_.at(a.io_batch).capacity());
        if (s.ok()) s = step_.land_prefetch(lanes, a.io_batch);
        if (!s) release(&a, lanes, runner::fate::dropped);
        return s;
    }

    /// Steps attend what prefetch() chose for a predicted query.
    static constexpr bool predicts = detail::chooses_ahead<typename types::selector>();

    /// What the engine names exists by the time of its token, once in each row. Of all lanes, so that every shard
    /// of a call refuses the same.
    [[nodiscard]] status check_names(std::uint32_t slot, std::uint32_t layer,
                                     std::span<const std::uint32_t> named, std::uint32_t tokens) noexcept {
        if (lanes_of(slot, layer).empty()) return {};
        const std::uint32_t lanes = plan_.model.lanes(), rows = tokens * lanes,
                            held = store_.at(lanes_of(slot, layer)[0].id).state().tokens;
        if (named.empty() || named.size() % rows != 0)
            return status::failure(errc::invalid_argument,
                                   "attend: chosen has %zu numbers; valid: a positive multiple of %u, the "
                                   "tokens times the KV heads that choose",
                                   named.size(), rows);
        const std::size_t each = named.size() / rows;
        for (std::uint32_t row = 0; row < rows; ++row) {
            const auto own = named.subspan(row * each, each);
            const std::uint32_t now = held + row / lanes + 1, sinks = std::min(now, plan_.sizes.sinks),
                                units = (now - sinks + store_.group() - 1) / store_.group();
            for (std::size_t i = 0; i < each; ++i) {
                if (own[i] == none) continue;
                if (own[i] >= units)
                    return status::failure(
                        errc::invalid_argument,
                        "attend: chosen has unit %u for KV head %u; valid: below %u, or none", own[i],
                        row % lanes, units);
                if (std::find(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(i), own[i]) !=
                    own.begin() + static_cast<std::ptrdiff_t>(i))
                    return status::failure(errc::invalid_argument,
                                           "attend: chosen has unit %u twice for KV head %u; valid: once",
                                           own[i], row % lanes);
            }
        }
        return {};
    }
    /// Chooses for q and submits the reads of what is not resident, if something is free to carry them.
    [[nodiscard]] status read_ahead(std::span<const lane_ref> lanes, std::uint32_t slot, std::uint32_t layer,
                                    const tensor_view& q) noexcept {
        prefetch_slot* a = free_prefetch_slot();
        if (a == nullptr) return {};
        for (const lane_ref& ref : lanes)
            if (should_found(store_.at(ref.id))) return {}; // attend() will cluster this lane first
        if (status s = bring(slot, layer); !s) return s;
        this->let_tables_grow(lanes, 1); // not in between: nothing of what is read would stay
        simd::encode(q, 0, a->query.data(), a->query.size());
        if (status s = source_.guess(lanes, a->query.data(), 1, layer); !s) return s;
        a->slot = slot, a->layer = layer;
        a->io_batch =
            runner::store::step_io_batches + static_cast<std::uint32_t>(a - memory_.prefetch_slots.data());
        a->complete = true, a->announced = false;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            a->count[i] = step_.chosen_count(i);
            std::copy_n(step_.chosen_of(i).begin(), a->count[i],
                        a->chosen.begin() + i * plan_.chosen_per_lane);
        }
        io_.at(a->io_batch).clear();
        status s = step_.prefetch(lanes, a->io_batch);
        if (!s) release(a, lanes, runner::fate::dropped);
        return s;
    }

    /// A call that failed counts for nothing, but for the time that it took and what had been read in vain.
    void restore(const statistics& before) noexcept {
        const phase_times taken = stats_.phase_ns;
        const std::uint64_t wasted = stats_.wasted_bytes;
        stats_ = before;
        stats_.phase_ns = taken, stats_.wasted_bytes = wasted;
    }

    /// A step begins, for the replacement policy of the pool.
    void tick(std::span<const lane_ref> lanes, std::uint32_t layer) noexcept {
        if (layer == 0 || plan_.pool_layers > 1) pool_for(lanes).tick();
    }
    /// What a lane's entries take: records in units, plain rows elsewhere.
    [[nodiscard]] std::size_t bytes_of(const lane& l) const noexcept {
        const lane_state& s = l.state();
        const std::size_t row =
            2 * std::size_t{plan_.sizes.width} * sizeof(element_type) + (types::weighted ? sizeof(float) : 0);
        std::size_t bytes = l.entries_in_memory() * row;
        if constexpr (types::compressor::ragged)
            for (std::uint32_t u = 0; u < s.units; ++u) bytes += l.extent(u).bytes;
        else
            bytes += l.entries_in_units() / types::compressor::granule * plan_.sizes.record.entry();
        return bytes;
    }
};

}} // namespace kvtl::v0
