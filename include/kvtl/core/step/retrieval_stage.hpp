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

template <class Types> class retrieval_stage {
  public:
    using types = Types;
    using element_type = typename types::element_type;
    using pool = typename types::pool;
    using lane = typename types::lane;
    using runner = step_runner<types>;

    template <class... Parts> [[gnu::cold]] void init(Parts&&... parts) noexcept {
        r_.init(std::forward<Parts>(parts)...);
    }
    [[nodiscard, gnu::cold]] status bind(const calibration_view& calibration) { return r_.bind(calibration); }
    [[nodiscard]] store_of<types>& store() noexcept { return r_.store; }
    [[nodiscard]] growth_of<types>& growth() noexcept { return r_.growth; }
    [[nodiscard]] std::uint32_t tokens(std::uint32_t slot, std::uint32_t layer) noexcept {
        return r_.tokens(slot, layer);
    }
    [[nodiscard]] std::size_t kept_entries(std::uint32_t slot, std::uint32_t layer) noexcept {
        return r_.kept_entries(slot, layer);
    }
    [[nodiscard]] status check_writes(std::uint32_t slot) noexcept { return r_.check_writes(slot); }
    [[nodiscard]] static status check_last_queries(const layer_input& in) noexcept {
        return retrieval_parts<types>::check_last_queries(in);
    }
    [[nodiscard]] status prefill(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                 std::uint32_t tokens, const tensor_span& out, bool last) noexcept {
        return prompts_.prefill(h, slot, layer, in, tokens, out, last);
    }
    [[nodiscard]] status attend_only(call_half h, std::uint32_t slot, std::uint32_t layer,
                                     const layer_input& in, std::uint32_t tokens,
                                     const tensor_span& out) noexcept {
        return prompts_.attend_only(h, slot, layer, in, tokens, out);
    }
    template <class Kept>
    [[nodiscard]] status take_over(std::uint32_t slot, std::uint32_t layer, Kept& kept, const layer_input& in,
                                   std::uint32_t chunk) noexcept {
        return prompts_.take_over(slot, layer, kept, in, chunk);
    }

    /// The prompt of a layer is complete, so that a token may come.
    [[nodiscard]] status ready(const char* call, std::uint32_t slot, std::uint32_t layer) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        const lane_state& s = r_.store.at(lanes[0].id).state();
        if (s.prompt_open)
            return status::failure(errc::invalid_argument,
                                   "%s: the prompt is not complete: %u tokens wait for a prefill with "
                                   "last_chunk = true",
                                   call, s.tokens);
        return r_.check_complete(lanes);
    }
    /// stays: false: the tokens are taken back. Entries that left the window for them stay in their units, as after a draft that fails.
    [[nodiscard]] status attend(call_half h, std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                std::uint32_t tokens, const tensor_span& out, bool stays) noexcept {
        if constexpr (step_choice<types>::by_name)
            if (h == call_half::prepare)
                if (status s = check_names(slot, layer, in.chosen, tokens); !s) return s;
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        if (h == call_half::undo) return give_back(slot, layer, tokens - 1), status{};
        if (h == call_half::commit) {
            commit_step(slot, layer, lanes, stays);
            if (!stays) rewind(slot, layer, tokens - 1); // within the window, which was as long as the draft
            return {};
        }
        if (tokens == 1) return prepare_step(slot, layer, in, out, stays, r_.before);
        if (tokens > r_.plan.sizes.window) // a failed one gives up those before it
            return status::failure(errc::invalid_argument,
                                   "attend: k has %u tokens; valid: 1 to window_tokens = %u", tokens,
                                   r_.plan.sizes.window);
        if (!stays && r_.store.at(lanes[0].id).state().tokens < r_.plan.sizes.sinks)
            return status::failure(
                errc::invalid_argument,
                "attend: k has %u tokens, in a layer that shares its cache; valid: 1 until "
                "the sequence has sink_tokens = %u",
                tokens, r_.plan.sizes.sinks);
        r_.before = r_.stats;
        statistics before;
        const std::size_t row = out.size() / tokens;
        for (std::uint32_t t = 0;; ++t) {
            const bool last = t + 1 == tokens;
            status done = prepare_step(slot, layer, in.rows(t, 1, tokens), out.subspan(t * row, row),
                                       stays || !last, before);
            if (!done) return give_back(slot, layer, t), done;
            if (last) return {};
            commit_step(slot, layer, r_.lanes_of(slot, layer), true);
        }
    }

    /// All of a step that can fail. `before` becomes what has been counted in front of it.
    [[nodiscard]] status prepare_step(std::uint32_t slot, std::uint32_t layer, const layer_input& in,
                                      const tensor_span& out, bool stays, statistics& before) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.begin_call();
        // Entries that found no place last time are placed now, which must not meet units whose reads are in
        // the air.
        if (r_.window_overflows(lanes)) r_.ahead.release_all();
        if (status s = r_.bring(slot, layer); !s) return s;
        timed.enter(&phase_times::maintain);
        if (status s = r_.accept(lanes, 1); !s) return s;
        before = r_.stats;
        timed.enter(&phase_times::append);
        for (const lane_ref& ref : lanes) r_.step.encode_arrival(ref, r_.step.rows_of(ref, in)(0));
        prefetch_slot* a = r_.ahead.find(slot, layer);
        const float* q = r_.step.widen(in.q);
        r_.step.choice().name_units(in.chosen);
        status done = r_.step.choose_for_step(lanes, q, layer, a);
        r_.step.choice().name_units({});
        const bool chosen = done.ok();
        if (chosen) {
            if (stays) {
                r_.step.choice().force_full_buffers(lanes, r_.plan.buffer_limit);
                r_.step.foresee(lanes);
            }
            // What the next layer keeps is read in once the misses of this one have landed.
            done = r_.step.attend(lanes, q, in, out, a != nullptr ? a->io_batch : none, [&] {
                if (stays) r_.announce_next(slot, layer);
            });
        }
        const bool read_ahead = r_.ahead.any();
        r_.ahead.release(a, lanes, chosen ? runner::fate::attended : runner::fate::dropped);
        if (chosen && read_ahead &&
            done.code() == errc::bound_too_small) { // what was read ahead held the frames
            r_.ahead.release_all();
            const choice_counts choosing = r_.stats.choosing; // what was chosen still holds
            r_.restore(before);
            r_.stats.choosing = choosing;
            done = r_.step.attend(lanes, q, in, out, none, [] {});
        }
        if (!done) r_.restore(before);
        return done;
    }
    /// stays: the token is counted; else the lanes are as they were.
    void commit_step(std::uint32_t slot, std::uint32_t layer, std::span<const lane_ref> lanes,
                     bool stays) noexcept {
        ++r_.stats.steps;
        if (!stays) return r_.step.choice().remember(lanes); // which another layer may follow
        const phase_clock::span timed(r_.clock(), &phase_times::append);
        if constexpr (sequence_bars<types>::of_steps) r_.bars.note_step(slot, layer, r_.step.facts(lanes));
        r_.arenas.note_call(slot, layer);
        tick(lanes, layer);
        r_.step.commit(lanes, r_.plan.buffer_limit);
        r_.note_storage();
    }

    [[nodiscard]] status append(call_half h, std::uint32_t slot, std::uint32_t layer,
                                const layer_input& in) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty() || h == call_half::undo) return {};
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        if (h == call_half::prepare) {
            r_.begin_call();
            if (r_.window_overflows(lanes)) r_.ahead.release_all(); // as in prepare_step()
            // What a select() behind this will choose may be among it, and stays where anything does.
            r_.ahead.release(r_.ahead.find(slot, layer), lanes,
                             types::keeps_nothing ? runner::fate::dropped : runner::fate::shown);
            if (status s = r_.bring(slot, layer); !s) return s;
            timed.enter(&phase_times::maintain);
            return r_.accept(lanes, 1);
        }
        timed.enter(&phase_times::maintain);
        tick(lanes, layer);
        for (const lane_ref& ref : lanes)
            if (status s = r_.step.append_turn(ref, 1, r_.plan.buffer_limit, r_.step.rows_of(ref, in)); !s)
                return s;
        timed.enter(&phase_times::fetch_wait);
        r_.announce_next(slot, layer);
        r_.arenas.note_call(slot, layer);
        r_.note_storage();
        return {};
    }

    /// The engine is about to compute this layer's query: what the layer keeps resident is read in, where memory
    /// is lent to layers in turn. A hint; what does not come is read when it is attended.
    void before_query(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (r_.arenas.idle() || r_.lanes_of(slot, layer).empty()) return;
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.io.poll(false);
        r_.arenas.tell(slot, layer);
        r_.arenas.turn_to(r_.owned.group(slot), layer);
        r_.arenas.announce(r_.owned.group(slot), layer, r_.leaver(slot));
    }

    [[nodiscard]] status prefetch(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        // Layer 0's query nobody guesses. A guess for others that go by their own would be read in vain.
        if (predicts && layer > 0 && layer < r_.plan.true_layers) return {};
        if (step_choice<types>::by_name) return {};
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.begin_call();
        if (status s = r_.check_complete(lanes); !s) return s;
        r_.ahead.release(r_.ahead.find(slot, layer), lanes, runner::fate::dropped);
        return read_ahead(lanes, slot, layer, q);
    }

    /// Reads what the layer's last step chose and is not in memory, as far as free frames go: no unit leaves for it.
    [[nodiscard]] status read_back(std::uint32_t slot, std::uint32_t layer) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty() || types::keeps_nothing) return {};
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.begin_call();
        if (status s = r_.check_complete(lanes); !s) return s;
        if (status s = r_.bring(slot, layer); !s) return s;
        // What was read ahead for the layer lands first: pages of fixed groups may serve units that come now, too.
        if (prefetch_slot* a = r_.ahead.find(slot, layer);
            a != nullptr && !r_.step.land_prefetch(lanes, a->io_batch).ok())
            r_.ahead.release(a, lanes, runner::fate::dropped);
        return r_.step.read_back(lanes);
    }

    /// A step with this query comes, perhaps after others: what it chooses is read meanwhile. A hint. False when frames or
    /// prefetches do not suffice for more: what comes later would only push out what others find resident.
    [[nodiscard]] bool prefetch_for_batch(std::uint32_t slot, std::uint32_t layer,
                                          const tensor_view& q) noexcept {
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty() || step_choice<types>::by_name || (predicts && layer >= r_.plan.true_layers))
            return true;
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.begin_call();
        if (r_.ahead.find(slot, layer) != nullptr || !r_.check_complete(lanes).ok() ||
            r_.window_overflows(lanes))
            return true;
        static_cast<void>(read_ahead(lanes, slot, layer, q)); // what is wrong the step will say
        prefetch_slot* a = r_.ahead.find(slot, layer);
        if (a == nullptr) return false;
        a->announced = true;
        return r_.step.all_planned(lanes, a->io_batch);
    }
    /// Gives up what was announced for steps that have not come: of a batch that failed.
    void cancel_prefetch() noexcept { r_.ahead.cancel(); }

    /// Brings the units chosen for q in and pins them; views() lists what the engine attends.
    [[nodiscard]] status select(std::uint32_t slot, std::uint32_t layer, const tensor_view& q) noexcept {
        const phase_clock::span timed(r_.clock(), &phase_times::fetch_wait);
        r_.ahead.release_selection();
        const auto lanes = r_.lanes_of(slot, layer);
        if (lanes.empty()) return {};
        r_.before = r_.stats;
        r_.begin_call();
        if (status s = r_.check_complete(lanes); !s) return s;
        if (r_.ahead.unused() == nullptr && r_.ahead.find(slot, layer) == nullptr) r_.ahead.release_all();
        if (status s = r_.bring(slot, layer); !s) return s;
        // What was read ahead for this query is pinned until what is chosen is. It has come first: scoring may read the
        // pages of the lane itself.
        prefetch_slot* guess = r_.ahead.find(slot, layer);
        if (guess != nullptr && !r_.step.land_prefetch(lanes, guess->io_batch).ok())
            r_.ahead.release(std::exchange(guess, nullptr), lanes, runner::fate::dropped);
        status s = r_.step.choose_to_show(lanes, r_.step.widen(q));
        if (!s || r_.ahead.unused() == nullptr)
            r_.ahead.release(std::exchange(guess, nullptr), lanes,
                             s.ok() ? runner::fate::attended : runner::fate::dropped);
        if (!s) return s;
        prefetch_slot* a = r_.ahead.unused();
        r_.ahead.begin(*a, slot, layer, false);
        s = show_chosen(lanes, *a);
        const bool in_the_way = guess != nullptr || r_.ahead.any_of(r_.owned.group(slot));
        r_.ahead.release(guess, lanes, runner::fate::attended);
        if (s.code() == errc::bound_too_small && in_the_way) { // what was read ahead held the frames
            r_.ahead.release_of(r_.owned.group(slot));
            r_.ahead.begin(*a, slot, layer, false);
            s = show_chosen(lanes, *a);
        }
        if (!s) return s;
        r_.ahead.select(*a);
        r_.announce_next(slot, layer);
        r_.arenas.note_call(slot, layer);
        return {};
    }

    /// Unpins what select() has brought in, and takes back its counts.
    void undo_select(std::uint32_t slot, std::uint32_t layer) noexcept {
        if (r_.lanes_of(slot, layer).empty()) return;
        r_.ahead.release_selection();
        r_.restore(r_.before);
    }

    /// Calls visit(kv head, keys, values) for every block of rows of the current selection and of DRAM. Rows
    /// that are no records are decoded for the visit and last as long as it does.
    template <class Visit> void views(std::uint32_t slot, std::uint32_t layer, Visit&& visit) noexcept {
        static_assert(!types::weighted, "[kvtl] select: rows do not show the weights of entries");
        const auto lanes = r_.lanes_of(slot, layer);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = r_.store.at(lanes[i].id);
            const lane_state& s = l.state();
            const auto block = [&](const element_type* k, const element_type* v, std::uint32_t rows) {
                for (std::uint32_t h = 0; rows > 0 && h < r_.plan.model.lane_heads; ++h) {
                    const std::size_t at = std::size_t{h} * r_.plan.model.dim;
                    visit(lanes[i].in_layer * r_.plan.model.lane_heads + h,
                          rows_view<element_type>{k + at, rows, r_.plan.model.dim, r_.plan.model.width()},
                          rows_view<element_type>{v + at, rows, r_.plan.model.dim, r_.plan.model.width()});
                }
            };
            block(l.sink_k(0), l.sink_v(0), s.sinks);
            r_.step.attention().visit_window(l, s.tokens,
                                             [&](const element_type* k, const element_type* v, const float*,
                                                 std::uint32_t rows) { block(k, v, rows); });
            block(l.buffer_k(0), l.buffer_v(0), s.buffered);
            const prefetch_slot* shown = r_.ahead.selection();
            if (shown == nullptr) continue;
            for (const work_item& w : r_.io.at(shown->io_batch).items()) {
                if (w.lane != i) continue;
                r_.step.attention().visit_unit(
                    lanes[i], w.unit, [&](const records_view& keys, const records_view& values) {
                        r_.memory.shown.show(
                            r_.store.unit_codec(lanes[i].id), keys, values,
                            [&](std::size_t, const element_type* k, const element_type* v, std::size_t n) {
                                block(k, v, static_cast<std::uint32_t>(n));
                            });
                    });
            }
        }
    }
    void give_up_turn(std::uint32_t slot, std::uint32_t layer, bool empty) noexcept {
        if (const auto lanes = r_.lanes_of(slot, layer); !lanes.empty()) r_.give_up_turn(lanes, empty);
    }
    [[nodiscard]] status check_rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n,
                                      const rewind_argument& asked = {}) noexcept {
        for (const lane_ref& ref : r_.lanes_of(slot, layer)) {
            const lane_state& s = r_.store.at(ref.id).state();
            if (s.staged >= n) continue; // chunks of a prompt, in token order
            if (n > s.tokens - s.window_begin)
                return status::failure(
                    errc::out_of_range,
                    "%s: %s is %zu; layer %u has %u tokens and can give up %u (its window)", asked.call,
                    asked.name, asked.value, r_.plan.numbers.of(layer), s.tokens, s.tokens - s.window_begin);
        }
        return {};
    }
    void rewind(std::uint32_t slot, std::uint32_t layer, std::uint32_t n) noexcept {
        for (const lane_ref& ref : r_.lanes_of(slot, layer)) {
            lane_state& s = r_.store.at(ref.id).state();
            (s.staged > 0 ? s.staged : s.tokens) -= n;
            s.prompt_open = s.prompt_open && s.tokens > 0;
        }
    }

    [[nodiscard]] status retry_writes(std::uint32_t slot) noexcept {
        if (r_.io.gave_up()) return r_.io.no_answer();
        r_.ahead.release_selection();
        for (pool& writes : r_.write_pools_at(slot))
            if (status s = r_.store.retry_writes(writes); !s) return s;
        return r_.arenas.retry_writes(r_.owned.group(slot));
    }

    /// Before the memory goes. False: the device gave a transfer up, which may still write to it.
    [[nodiscard]] bool land_all() noexcept { return r_.io.land_all(); }

    /// Forgets a sequence: its pages, frames and tables.
    void end(std::uint32_t slot) noexcept {
        r_.ahead.release_all();
        r_.arenas.land(r_.owned.group(slot));
        for (pool& writes : r_.write_pools_at(slot)) r_.store.settle_all_writes(writes);
        for (std::uint32_t layer = 0; layer < r_.plan.model.layers; ++layer)
            for (const lane_ref& ref : r_.lanes_of(slot, layer)) r_.store.forget_lane(ref.id);
        if (r_.owned.count(slot) > 0) r_.store.empty_tables(r_.owned.at(slot, 0, 0).id);
        r_.bars.forget(slot);
        // Others that share the memory may have been kept waiting.
        static_cast<void>(r_.arenas.retry_writes(r_.owned.group(slot)));
    }

    /// What the lane that begins with a KV head of the model is, to or from a stream (core/save/sequence_parts.hpp). Nothing
    /// where it begins with another one. batch: memory for pages on their way.
    void parts(part_stream& io, std::uint32_t slot, std::uint32_t layer, std::uint32_t head,
               std::span<std::byte> batch) noexcept {
        const std::uint32_t i = lane_of_head(slot, head);
        if (i == none) return;
        const lane_ref ref = r_.owned.at(slot, layer, i);
        if (status s = io.loads() ? make_ready(slot, layer, ref) : at_rest(slot, layer, ref); !s)
            return io.fail(std::move(s));
        r_.bars.parts(io, slot, layer, i);
        lane_parts<types, store_of<types>>(r_.store, io, batch).move(ref.id);
        if (!io.loads()) return;
        r_.store.pool_of(ref.id).borrow();
        r_.note_storage();
    }

    /// Decisions about the sequence depend on which of its units are in memory, and a save keeps these.
    static constexpr bool keeps_hot_set = types::residency_decides && !types::virtualised;
    /// The sequence's frames are its own, and nothing of it is on its way.
    [[nodiscard]] bool has_hot_set(std::uint32_t slot) const noexcept {
        std::uint32_t sequences = 0;
        for (std::uint32_t s = 0; s < r_.plan.max_sequences; ++s)
            sequences += r_.owned.count(s) > 0 ? 1U : 0U;
        return keeps_hot_set && sequences == r_.plan.pool_groups() && r_.owned.count(slot) > 0;
    }
    /// Which units of the sequence are in memory, to or from a stream. False where that cannot be told, or the pool is
    /// another one: nothing is written then, or no unit becomes resident.
    [[nodiscard]] bool hot_set_parts(part_stream& io, std::uint32_t slot, const pool_role& role) noexcept {
        if constexpr (keeps_hot_set) {
            if (!has_hot_set(slot)) return false;
            hot_set<types> hot(r_.store, r_.owned.at(slot, 0, 0).id, role);
            if (io.loads()) return hot.load(io);
            if (!hot.at_rest()) return false;
            hot.save(io);
            return io.ok();
        }
        return false;
    }

    /// A save has the sequence as it is now.
    void note_saved(std::uint32_t slot) noexcept {
        for (std::uint32_t layer = 0; layer < r_.plan.model.layers; ++layer)
            for (const lane_ref& ref : r_.lanes_of(slot, layer)) r_.store.note_saved(ref.id);
    }

    /// Sequences that may share a page.
    static constexpr std::uint32_t most_owners = store_of<types>::most_owners;
    /// A branch begins: what belongs to all of its layers.
    void begin_branch(std::uint32_t parent, std::uint32_t to) noexcept { r_.bars.copy(parent, to); }
    /// A branch will copy this layer: what that takes is kept for it. A failed write of its pages is found now. After an error
    /// some of it may be kept.
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        if (status s = r_.check_writes(from); !s) return s;
        for (std::uint32_t i = 0; i < r_.owned.count(to); ++i)
            if (status s =
                    r_.store.promise_copy(r_.owned.at(from, layer, i).id, r_.owned.at(to, layer, i).id,
                                          [&] { r_.begin_call(), r_.ahead.release_of(r_.owned.group(to)); });
                !s) {
                while (i-- > 0)
                    r_.store.withdraw_copy(r_.owned.at(from, layer, i).id, r_.owned.at(to, layer, i).id);
                return s;
            }
        return {};
    }
    /// The branch does not copy the layer any more, or has copied it.
    void withdraw_copy(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        for (std::uint32_t i = 0; i < r_.owned.count(to); ++i)
            r_.store.withdraw_copy(r_.owned.at(from, layer, i).id, r_.owned.at(to, layer, i).id);
    }
    /// That was the last layer.
    void withdraw_copies(std::uint32_t to) noexcept {
        if (r_.owned.count(to) > 0) r_.store.withdraw_copies(r_.owned.at(to, 0, 0).id);
    }
    /// The layer of a branch, which is empty, becomes what its parent's is, and shares pages with it. Open pages of units are
    /// written first. Fails where a device fails, and the layer is empty then.
    [[nodiscard]] status copy_layer(std::uint32_t from, std::uint32_t to, std::uint32_t layer) noexcept {
        const std::uint32_t lanes = r_.owned.count(to);
        if (lanes == 0) return {};
        r_.begin_call();
        if (status s = r_.bring(from, layer); !s) return s;
        r_.store.put_away_tails(r_.owned.at(from, layer, 0).id);
        if (status s = settle_writes(from); !s) return s;
        if (types::sequential || types::virtualised) r_.ahead.release_of(r_.owned.group(to));
        status done = r_.lend_to_prompt(to, layer);
        if (!done) return done;
        for (std::uint32_t i = 0; i < lanes && done.ok(); ++i)
            done = r_.store.copy_lane(r_.owned.at(from, layer, i).id, r_.owned.at(to, layer, i).id);
        if (!done) {
            for (std::uint32_t i = 0; i < lanes; ++i) r_.store.forget_lane(r_.owned.at(to, layer, i).id);
            return done;
        }
        withdraw_copy(from, to, layer);
        r_.store.pool_of(r_.owned.at(to, layer, 0).id).borrow();
        r_.note_storage();
        return {};
    }

    /// Nothing is read ahead any more, and no transfer is under way. Fails when a write has failed.
    [[nodiscard]] status come_to_rest() noexcept {
        r_.begin_call();
        r_.ahead.release_all();
        for (const std::span<pool> kind : {r_.pools, r_.page_pools})
            for (pool& p : kind) r_.store.settle_all_writes(p);
        for (const std::span<pool> kind : {r_.pools, r_.page_pools})
            for (const pool& p : kind)
                if (r_.store.has_failed_writes(p)) return r_.store.write_error(p);
        return {};
    }
    /// From now on each pool has so many frames, those among them that carry pages of fixed groups, and the system has the
    /// memory of the others. `of`: the same for each sequence; empty: all have `frames`, as at first. False when the system does
    /// not take the memory. After come_to_rest(). `large`: of frames that come, in large pages; where all have as many.
    [[nodiscard]] bool limit_frames(std::uint32_t frames, std::span<const std::uint32_t> of,
                                    bool large) noexcept {
        r_.plan.frames = frames;
        const std::uint32_t usual = own_frames(frames), gone = r_.division.each() - usual;
        std::uint32_t least = frames;
        if (of.empty() || r_.pools.size() == 1) {
            for (pool& p : r_.pools) r_.store.limit_frames(p, usual, large);
        } else {
            const auto part = [&](std::size_t i) -> pool_part {
                const std::uint32_t slot = slot_of_pool(i),
                                    n = slot < of.size() ? part_of(of[slot], frames, usual) : 0;
                return {n + gone, n};
            };
            for (std::size_t i = 0; i < r_.pools.size(); ++i) {
                const std::uint32_t there = part(i).there;
                if (there > 0) least = std::min(least, there);
                r_.store.keep_frames(r_.pools[i], std::min(there, r_.pools[i].there()));
            }
            r_.division.divide(part);
            for (pool& p : r_.pools) p.borrow();
        }
        if (!types::sequential) {
            const std::uint32_t pages =
                std::min(r_.plan.io_batch_pages, r_.plan.io_batch_pages_for(least / 2));
            for (std::uint32_t i = 0; i < runner::store::step_io_batches + r_.plan.prefetches; ++i)
                r_.io.at(i).limit(pages);
        }
        return std::all_of(r_.pools.begin(), r_.pools.end(),
                           [](const pool& p) { return reservation::give_back(p.memory_away()); });
    }
    /// Bytes of the frames that a sequence may fill: those of all that share them, where they do.
    [[nodiscard]] std::size_t frame_bytes(std::uint32_t slot) const noexcept {
        if (r_.owned.count(slot) == 0) return 0;
        std::size_t bytes = 0;
        const std::size_t first = std::size_t{r_.owned.group(slot)} * r_.plan.pool_layers;
        for (const pool& p : r_.pools.subspan(first, r_.plan.takes_turns() ? r_.plan.arenas : 1))
            bytes += std::size_t{p.there()} * p.frame_bytes();
        return bytes;
    }

    /// What has been counted, without what lanes and frames hold.
    [[nodiscard]] statistics counted() const noexcept {
        statistics s = r_.stats;
        const io_counters c = r_.io.counters();
        s.reads = c.reads, s.read_bytes = c.read_bytes, s.writes = c.writes, s.written_bytes = c.write_bytes;
        return s;
    }
    [[nodiscard]] statistics stats() const noexcept {
        statistics s = counted();
        for (std::uint32_t slot = 0; slot < r_.plan.max_sequences; ++slot)
            for (std::uint32_t layer = 0; layer < r_.plan.model.layers; ++layer) add_held(s, slot, layer);
        if (!r_.arenas.idle()) {
            r_.arenas.add_to(s);
            s.resident_bytes_peak += r_.arenas.peak_bytes();
            return s;
        }
        for (const pool& p : r_.pools) {
            s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
            s.borrowed_bytes += std::size_t{p.borrowed()} * p.frame_bytes();
        }
        for (const pool& p : r_.page_pools) s.resident_bytes_peak += std::size_t{p.peak()} * p.frame_bytes();
        return s;
    }

    /// Adds what a layer holds now.
    void add_held(statistics& s, std::uint32_t slot, std::uint32_t layer) const noexcept {
        for (std::uint32_t i = 0; i < r_.owned.count(slot); ++i) {
            const lane l = r_.store.at(r_.owned.at(slot, layer, i).id);
            s.kept_bytes += bytes_of(l);
            s.units += l.state().units;
            if (types::drops) s.kept_entries += std::uint64_t{l.state().tokens} * r_.plan.model.lane_heads;
        }
    }

  private:
    /// Frames of a pool, in the unit that its kind has, out of so many pages.
    [[nodiscard]] std::uint32_t own_frames(std::uint32_t pages) const noexcept {
        if (!types::sequential) return pages;
        const std::size_t bytes =
            std::size_t{pages - std::min(pages, r_.plan.page_frames)} * r_.store.format().page_bytes;
        return static_cast<std::uint32_t>(bytes / r_.pools[0].frame_bytes());
    }
    /// The same where a pool of `frames` pages has `usual`: parts of pools that divide their pages are together no more than as
    /// many equal ones, whatever is rounded.
    [[nodiscard]] std::uint32_t part_of(std::uint32_t pages, std::uint32_t frames,
                                        std::uint32_t usual) const noexcept {
        const std::uint32_t fixed = r_.plan.page_frames;
        return static_cast<std::uint32_t>(std::uint64_t{pages - fixed} * usual / (frames - fixed));
    }
    /// The sequence whose pool that is, where each has one.
    [[nodiscard]] std::uint32_t slot_of_pool(std::size_t i) const noexcept {
        const auto seat = static_cast<std::uint32_t>(i);
        return r_.plan.division.by_sequence ? seat * r_.plan.division.shards + r_.index : seat;
    }
    /// A lane can be saved: it is complete, and what is written of it has been.
    [[nodiscard]] status at_rest(std::uint32_t slot, std::uint32_t layer, const lane_ref& ref) noexcept {
        if (status s = r_.check_complete({&ref, 1}); !s) return s;
        if (status s = r_.bring(slot, layer); !s) return s;
        return settle_writes(slot);
    }
    /// Waits for the writes of a sequence.
    [[nodiscard]] status settle_writes(std::uint32_t slot) noexcept {
        for (pool& writes : r_.write_pools_at(slot)) r_.store.settle_all_writes(writes);
        return r_.check_writes(slot);
    }
    /// The shard's lane that begins with a KV head of the model, or none.
    [[nodiscard]] std::uint32_t lane_of_head(std::uint32_t slot, std::uint32_t head) const noexcept {
        for (std::uint32_t i = 0; i < r_.owned.count(slot); ++i)
            if (r_.owned.at(slot, 0, i).in_layer * r_.plan.model.lane_heads == head) return i;
        return none;
    }
    /// A lane can be loaded: the frames of its pool are empty, and its tables may grow.
    [[nodiscard]] status make_ready(std::uint32_t slot, std::uint32_t layer, const lane_ref& ref) noexcept {
        r_.begin_call();
        r_.ahead.release_all();
        if (status s = r_.lend_to_prompt(slot, layer); !s) return s;
        return r_.store.vacate(r_.store.pool_of(ref.id));
    }
    /// Reads what select() has chosen and pins it, all of it, or nothing.
    [[nodiscard]] status show_chosen(std::span<const lane_ref> lanes, prefetch_slot& a) noexcept {
        r_.io.at(a.io_batch).clear();
        status s = r_.step.prefetch(lanes, a.io_batch);
        if (s.ok() && !r_.step.all_planned(lanes, a.io_batch))
            s = status::failure(errc::bound_too_small,
                                "select: the chosen units do not fit in %u frames at once, or %u pages are "
                                "not all that has to be read for them; lower attend_tokens, or raise "
                                "memory_bytes (pages: half of the frames, at most 512)",
                                r_.pool_for(lanes).there(), r_.io.at(a.io_batch).capacity());
        if (s.ok()) s = r_.step.land_prefetch(lanes, a.io_batch);
        if (!s) r_.ahead.release(&a, lanes, runner::fate::dropped);
        return s;
    }

    /// Steps attend what prefetch() chose for a predicted query.
    static constexpr bool predicts = chooses_ahead<typename types::selector>;

    /// What the engine names exists by the time of its token, once in each row. Of all lanes, so that every shard
    /// of a call refuses the same.
    [[nodiscard]] status check_names(std::uint32_t slot, std::uint32_t layer,
                                     std::span<const std::uint32_t> named, std::uint32_t tokens) noexcept {
        if (r_.lanes_of(slot, layer).empty()) return {};
        const std::uint32_t lanes = r_.plan.model.lanes(), rows = tokens * lanes,
                            held = r_.store.at(r_.lanes_of(slot, layer)[0].id).state().tokens;
        if (named.empty() || named.size() % rows != 0)
            return status::failure(errc::invalid_argument,
                                   "attend: chosen has %zu numbers; valid: a positive multiple of %u, the "
                                   "tokens times the KV heads that choose",
                                   named.size(), rows);
        const std::size_t each = named.size() / rows;
        for (std::uint32_t row = 0; row < rows; ++row) {
            const auto own = named.subspan(row * each, each);
            const std::uint32_t now = held + row / lanes + 1, sinks = std::min(now, r_.plan.sizes.sinks),
                                units = (now - sinks + r_.store.group() - 1) / r_.store.group();
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
        prefetch_slot* a = r_.ahead.unused();
        if (a == nullptr) return {};
        for (const lane_ref& ref : lanes)
            if (r_.should_found(r_.store.at(ref.id))) return {}; // attend() will cluster this lane first
        if (status s = r_.bring(slot, layer); !s) return s;
        r_.let_tables_grow(lanes, 1); // not in between: nothing of what is read would stay
        simd::encode(q, 0, a->query.data(), a->query.size());
        if (status s = r_.step.choose_ahead(lanes, a->query.data(), layer); !s) return s;
        r_.ahead.begin(*a, slot, layer, true);
        r_.step.choice().give(lanes, *a);
        r_.io.at(a->io_batch).clear();
        status s = r_.step.prefetch(lanes, a->io_batch);
        if (!s) r_.ahead.release(a, lanes, runner::fate::dropped);
        return s;
    }

    /// Takes back the first `taken` tokens of a draft, and what the call has counted.
    void give_back(std::uint32_t slot, std::uint32_t layer, std::uint32_t taken) noexcept {
        if (check_rewind(slot, layer, taken).ok())
            rewind(slot, layer, taken);
        else // before the window there is nothing to read, so that this cannot be
            give_up_turn(slot, layer, false);
        r_.restore(r_.before);
    }

    /// A step begins, for the replacement policy of the pool.
    void tick(std::span<const lane_ref> lanes, std::uint32_t layer) noexcept {
        if (layer == 0 || r_.plan.pool_layers > 1) r_.pool_for(lanes).tick();
    }
    /// What a lane's entries take: records in units, plain rows elsewhere.
    [[nodiscard]] std::size_t bytes_of(const lane& l) const noexcept {
        const lane_state& s = l.state();
        const std::size_t row = 2 * std::size_t{r_.plan.sizes.width} * sizeof(element_type) +
                                (types::weighted ? sizeof(float) : 0);
        std::size_t bytes = l.entries_in_memory() * row;
        if (types::compressor::ragged)
            for (std::uint32_t u = 0; u < s.units; ++u) bytes += l.extent(u).bytes;
        else
            bytes += l.entries_in_units() / types::compressor::granule * r_.plan.sizes.record.entry();
        return bytes;
    }

    retrieval_parts<types> r_;
    retrieval_prompts<types> prompts_{r_};
};

}} // namespace kvtl::v0
