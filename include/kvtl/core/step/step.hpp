// One decode step of one layer: choose units, read what is missing, attend while the reads fly, then commit.
//
// Nothing of a lane's tokens or units changes before commit(), which cannot fail, so a failed step may be
// tried again. Work is a list of (lane, unit) items in unit order. It is cut into batches of as many units as
// there are frames; while one batch is attended the next one's reads are in the air. Every item's partial
// result is computed by itself and merged in unit order, or small units are gathered in that order: the result's
// bits do not depend on the device, on threads or on the order of completions.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/step/step_choice.hpp>

#include <algorithm>
#include <span>

namespace kvtl { inline namespace v0 {

template <class Types> class step_runner {
  public:
    using element_type = typename Types::element_type;
    using store = store_of<Types>;
    using parts = step_parts<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;

    struct scratch {
        typename step_choice<Types>::scratch choice;
        typename step_attention<Types>::scratch attention;
        std::span<simd::neighbour> leaves; ///< (lanes) for whose entry the nearest mean is foreseen

        /// `shared`: for what nobody needs between two calls or while units grow.
        static scratch take(carver& c, carver& shared, const parts& p, std::uint32_t lanes) noexcept {
            scratch x;
            x.choice = step_choice<Types>::scratch::take(c, p, lanes);
            x.leaves = c.take<simd::neighbour>(growth_of<Types>::foresees ? lanes : 0);
            x.attention = step_attention<Types>::scratch::take(c, shared, p, lanes);
            return x;
        }
    };

    step_runner() = default;
    step_runner(store& s, const parts& p, const scratch& x) noexcept
        : store_(&s), p_(p), choice_(s, p, x.choice), attention_(s, p, x.attention), leaves_(x.leaves) {}

    [[nodiscard]] step_choice<Types>& choice() noexcept { return choice_; }
    [[nodiscard]] const step_attention<Types>& attention() const noexcept { return attention_; }
    /// What the last step chose and put out, for the bar.
    [[nodiscard]] step_facts facts(std::span<const lane_ref> lanes) const noexcept {
        return choice_.facts(lanes, output_);
    }

    // ------------------------------------------------------------------------------------------------
    // whose choice a step attends
    //
    //   layer shares (policies/select_shared_by_layers.hpp)   what the layer that leads it chose in this step
    //   chosen for a prediction (query::predicted)            what prefetch() chose; without one, or in the first
    //                                                         layers (schedule.true_layers), what the true query
    //                                                         chooses, read on demand and counted
    //   prefetch() was given the true query                   what prefetch() chose: scored once
    //   otherwise                                             index and selector choose for the query
    //
    /// For a step: the units that the lanes of a layer attend for q (HQ, D). `a`: what prefetch() has chosen for this layer, or
    /// null. O(units chosen) where a choice is copied; another layer's is followed in O(U / 64 + units chosen).
    [[nodiscard]] status choose_for_step(std::span<const lane_ref> lanes, const float* q, std::uint32_t layer,
                                         const prefetch_slot* a) noexcept {
        if (layer % share != 0) return choice_.follow(lanes, layer % share), status{};
        // What was chosen for a prediction stands; for others it does when the engine knew the true query.
        constexpr bool predicts = chooses_ahead<typename Types::selector>;
        static_assert(!step_choice<Types>::by_errors || (share == 1 && !predicts),
                      "[kvtl] selector: one that goes by errors chooses in every step and layer");
        const bool by_guess = predicts && layer >= p_.true_layers;
        if (predicts && (a == nullptr || !by_guess)) ++store_->stats().unpredicted_choices;
        // One that goes by errors knows more by now: the arriving token counts, too.
        if (a != nullptr &&
            (by_guess || (!step_choice<Types>::by_errors && a->same_query(q, a->query.size()))))
            return choice_.take(lanes, *a), status{};
        // Scoring reads the pages of the lane itself: what reads them ahead lands first.
        if (Types::split_pages && a != nullptr)
            if (status s = land_prefetch(lanes, a->io_batch); !s) return s;
        return choice_.choose(lanes, q, 1, true, attention_);
    }
    /// For prefetch(): what a step with this query would choose as far as can be known now.
    [[nodiscard]] status choose_ahead(std::span<const lane_ref> lanes, const float* q,
                                      std::uint32_t layer) noexcept {
        if (layer % share != 0) return choice_.follow(lanes, layer % share), status{};
        return choice_.choose(lanes, q, 1, false, attention_);
    }
    /// For select(): what this query chooses among what is counted.
    [[nodiscard]] status choose_to_show(std::span<const lane_ref> lanes, const float* q) noexcept {
        return choice_.choose(lanes, q, 0, false, attention_);
    }
    /// Finds out, while scoring's data are in cache, where the entries belong that commit() will place.
    void foresee(std::span<const lane_ref> lanes) noexcept {
        if constexpr (growth_of<Types>::foresees) {
            const phase_clock::span timed(p_.clock, &phase_times::maintain);
            for (std::uint32_t i = 0; i < lanes.size(); ++i) leaves_[i] = p_.growth->foresee(lanes[i].id);
        }
    }

    /// The queries q (HQ, D) of a step as floats, until the next call. Those of 16 bits are widened once, here: against
    /// scoring units and attending entries that takes no time worth counting, and all that follows has one type.
    [[nodiscard]] const float* widen(const tensor_view& q) const noexcept {
        return simd::widened(q, 0, p_.query.data(), p_.query.size());
    }

    /// Attention of one token per lane over everything it may see. The arriving token's row is in place
    /// already (ring or sink) but not yet counted. q, out: (HQ, D); q is that of `in`, as floats.
    /// `prefetched`: an io_batch whose reads this step may use, or none. `meanwhile` is called once, when this step
    /// waits for reads no more: what it submits would only hold them up.
    template <class Meanwhile>
    [[nodiscard]] status attend(std::span<const lane_ref> lanes, const float* q, const layer_input& in,
                                const tensor_span& out, std::uint32_t prefetched,
                                Meanwhile&& meanwhile) noexcept {
        choice_.count_and_want(lanes);
        const status done = attend_chosen(lanes, q, in, out, prefetched, meanwhile);
        if (!done) choice_.forget_wanted(lanes);
        return done;
    }

    /// Counts the arrived token, lets the oldest window entry go to its unit, merges waiting entries. After foresee().
    void commit(std::span<const lane_ref> lanes, std::uint32_t buffer_limit) noexcept {
        const phase_clock::span timed(p_.clock, &phase_times::maintain);
        choice_.remember(lanes);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            arrive(l);
            if (choice_.forced(i) != none) ++store_->stats().forced_loads;
            bool changed = p_.growth->merge_buffered(lanes[i].id);
            // Still full: what should have been merged was attended, but had to leave its frames to a later
            // batch.
            if (l.state().buffered >= buffer_limit) {
                static_cast<void>(force_load(lanes[i].id));
                changed = true;
            }
            if constexpr (growth_of<Types>::foresees)
                if (!changed && p_.growth->overdue(l) && !p_.growth->place_oldest(lanes[i].id, leaves_[i]))
                    continue;
            drain_window(lanes[i].id);
        }
        store_->flush_writes();
        store_->io().poll(false);
    }

    /// Makes sure that the window has a row for the next token, or says why it has none: entries that found
    /// no place have stayed there.
    [[nodiscard]] status make_room(std::uint32_t lane_id) noexcept {
        if (drain_window(lane_id)) return {};
        const status forced = force_load(lane_id);
        if (drain_window(lane_id)) return {};
        if (!forced) return forced;
        if (status s = store_->write_error(store_->write_pool(lane_id)); !s) return s;
        return status::failure(
            errc::bound_too_small,
            "no frame or no room on storage is left for the entry that leaves the window, and %u "
            "entries wait for their units; raise memory_bytes, or end another sequence",
            store_->at(lane_id).state().buffered);
    }

    /// True when the lane's window holds no more than it should. A failed write may have kept an entry there.
    bool drain_window(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        while (p_.growth->overdue(l))
            if (!p_.growth->place_oldest(lane_id)) return false;
        return true;
    }

    // ---------------------------------------------------------------------------------------------------
    // turns (T > 1)
    /// Exact causal attention of T further tokens over everything: the lane's entries are read once for as many queries as
    /// turn_attention has room for.
    [[nodiscard]] status attend_turn(const lane_ref& ref, const layer_input& in, std::uint32_t tokens,
                                     const tensor_span& out) noexcept {
        const lane l = store_->at(ref.id);
        const lane_state& s = l.state();
        auto& turn = attention_.turn();
        const auto add = [&](const element_type* k, const element_type* v, const float* w, std::size_t rows) {
            turn.add(k, v, w, rows);
        };
        const auto add_records = [&](const records_view& keys, const records_view& values) {
            p_.decoded.show(
                store_->unit_codec(ref.id), keys, values,
                [&](std::size_t first, const element_type* k, const element_type* v, std::size_t rows) {
                    float w[simd::attend_block];
                    for (std::size_t i = 0; Types::weighted && i < rows; ++i)
                        w[i] = weight_behind(keys.record(first + i), static_cast<std::uint32_t>(keys.stride));
                    add(k, v, Types::weighted ? w : nullptr, rows);
                });
        };
        return turn.attend(p_.model.queries_of(ref.in_layer), in, s.tokens, tokens, out, [&]() -> status {
            if (s.sinks > 0) add(l.sink_k(0), l.sink_v(0), l.sink_w(0), s.sinks);
            if (status done = read_all_units(ref, l, add_records); !done) return done;
            attention_.visit_window(l, s.tokens, add);
            if (s.buffered > 0) add(l.buffer_k(0), l.buffer_v(0), l.buffer_w(0), s.buffered);
            return {};
        });
    }

    /// One entry as it arrives: (width) numbers each.
    struct entry_source {
        tensor_view k, v;
        entry_facts facts{none, 0}; ///< position none: the next of the sequence
    };
    /// The entries of a lane in k, v: (T, H, D).
    [[nodiscard]] auto rows_of(const lane_ref& ref, const layer_input& in) const noexcept {
        return [this, at = p_.model.key_offset(ref.in_layer), k = in.k, v = in.v](std::size_t t) {
            const std::size_t from = t * p_.model.kv_heads * p_.model.dim + at;
            return entry_source{k.subspan(from, p_.sizes.width), v.subspan(from, p_.sizes.width)};
        };
    }

    /// Appends T tokens to a lane as decode would; rows(t) is the entry of the t-th. An error leaves the lane
    /// with the tokens it has taken so far.
    template <class Rows>
    [[nodiscard]] status append_turn(const lane_ref& ref, std::uint32_t tokens, std::uint32_t buffer_limit,
                                     Rows&& rows) noexcept {
        const lane l = store_->at(ref.id);
        for (std::uint32_t t = 0; t < tokens; ++t) {
            if (status s = make_room(ref.id); !s) return s;
            encode_arrival(ref, rows(t));
            arrive(l);
            if (l.state().buffered >= buffer_limit) static_cast<void>(force_load(ref.id));
            drain_window(ref.id); // the last token may stay: the next call makes room
        }
        store_->flush_writes();
        return {};
    }

    /// Puts an entry where the lane's next token belongs.
    void encode_arrival(const lane_ref& ref, const entry_source& e) noexcept {
        const lane l = store_->at(ref.id);
        simd::encode(e.k, 0, l.arrival_k(l.state().tokens), p_.sizes.width);
        simd::encode(e.v, 0, l.arrival_v(l.state().tokens), p_.sizes.width);
        if (Types::weighted) *l.arrival_w(l.state().tokens) = e.facts.log_weight;
        if (Types::keeps_positions) {
            const lane_state& s = l.state();
            l.set_position(s.tokens, e.facts.position == none ? s.dropped + s.tokens : e.facts.position);
        }
    }

    void arrive(const lane& l) noexcept {
        lane_state& s = l.state();
        if (s.tokens < p_.sizes.sinks) {
            ++s.sinks;
            ++s.window_begin;
        }
        ++s.tokens;
    }

    // ------------------------------------------------------------------------------------------------
    // reading ahead
    /// Submits the reads of the chosen units into io_batch `id`, as far as frames allow. Units stay pinned
    /// until release_io_batch().
    [[nodiscard]] status prefetch(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        cursor at;
        choice_.want_resident(lanes);
        fill_io_batch(lanes, at, id, false);
        choice_.forget_wanted(lanes); // those that frames did not suffice for
        for (work_item& w : store_->io().at(id).items())
            if (w.loads)
                store_->set_io_batch(store_->at(lanes[w.lane].id).residency(w.unit),
                                     store_->pool_of(lanes[w.lane].id), id);
        return submit(lanes, id);
    }
    [[nodiscard]] bool all_planned(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        std::size_t wanted = 0;
        for (std::uint32_t i = 0; i < lanes.size(); ++i) wanted += choice_.of(i).size();
        return store_->io().at(id).items().size() == wanted;
    }
    /// Waits for a prefetch and checks it; on failure its units are not resident any more.
    [[nodiscard]] status land_prefetch(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        if (id == none) return {};
        io_batch& f = store_->io().at(id);
        store_->io().drain(id);
        if (!f.error().ok()) return f.error();
        for (work_item& w : f.items()) {
            if (!w.loads || w.done) continue;
            store_->finish_load(store_->at(lanes[w.lane].id), w.unit, id, store_->pool_of(lanes[w.lane].id));
            w.done = true;
        }
        store_->release_carriers(id, store_->pool_of(lanes[0].id));
        return {};
    }
    /// What became of units that were read ahead: a step has chosen among them, a selection has shown all of
    /// them, or nobody wanted them. What is not chosen does not stay, so a wrong guess leaves nothing behind
    /// but its cost.
    enum class fate : std::uint8_t { attended, shown, dropped };
    /// Unpins what a prefetch (or a selection) pinned.
    void release_io_batch(std::span<const lane_ref> lanes, std::uint32_t id, fate end) noexcept {
        io_batch& f = store_->io().at(id);
        const bool failed = !land_prefetch(lanes, id).ok();
        for (work_item& w : f.items()) {
            const lane l = store_->at(lanes[w.lane].id);
            auto& now = l.residency(w.unit);
            pool& frames = store_->pool_of(lanes[w.lane].id);
            const bool was_read = store_->io_batch_of(now, frames) == id;
            store_->set_io_batch(now, frames, none);
            store_->unpin(now, frames);
            if (!was_read) {
                drop_if_used(lanes[w.lane].id, w.unit);
                continue;
            }
            const bool unwanted =
                end == fate::dropped || (end == fate::attended && !choice_.contains(w.lane, w.unit));
            if (unwanted) store_->stats().wasted_bytes += store_->bytes_of(l, w.unit);
            if (unwanted || failed)
                store_->evict(l, w.unit, frames);
            else
                drop_if_used(lanes[w.lane].id, w.unit);
        }
        if (failed) store_->release_carriers(id, store_->pool_of(lanes[0].id));
        f.clear();
    }

    /// Reads units that the last step chose and that are not resident, while frames are free.
    [[nodiscard]] status read_back(std::span<const lane_ref> lanes) noexcept {
        io_batch& f = store_->io().at(0);
        f.clear();
        pool& frames = store_->pool_of(lanes[0].id);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) {
            const lane l = store_->at(lanes[i].id);
            const auto chosen = l.chosen_before();
            for (std::uint32_t u = 0; u < l.state().units; ++u) {
                if ((chosen[u / 64] >> (u % 64) & 1) == 0 || l.residency(u).frames() != none) continue;
                if (!store_->has_room(l, u, frames)) continue;
                if (!plan_back(lanes, i, u)) {
                    if (f.items().empty()) return {}; // frames are free, but not side by side
                    if (status s = finish_back(lanes); !s) return s;
                    if (!plan_back(lanes, i, u)) return {};
                }
            }
        }
        return finish_back(lanes);
    }

    [[nodiscard]] static status no_frames() noexcept {
        return status::failure(errc::bound_too_small, "memory_bytes: not enough frames to bring one unit in "
                                                      "(a failed write may hold them: see retry_writes)");
    }

  private:
    struct cursor {
        std::uint32_t lane = 0, i = 0;
    };
    static constexpr std::uint32_t share = detail::layers_that_share<typename Types::selector>();

    template <class Meanwhile>
    [[nodiscard]] status attend_chosen(std::span<const lane_ref> lanes, const float* q, const layer_input& in,
                                       const tensor_span& out, std::uint32_t prefetched,
                                       Meanwhile& meanwhile) noexcept {
        const phase_clock::span timed(p_.clock, &phase_times::fetch_wait);
        if (Types::sequential)
            if (status s = land_prefetch(lanes, prefetched); !s) return s;
        q_ = q;
        attention_.tile().clear();
        cursor at;
        std::uint32_t flying = plan(lanes, at, none);
        if (status s = submit(lanes, flying); !s) return abandon(lanes, flying, none, s);
        const bool waits = flying != none && store_->io().at(flying).requests() > 0;
        if (!waits) meanwhile();
        timed.enter(&phase_times::attend);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) attention_.begin_lane(lanes[i], i, q);
        timed.enter(&phase_times::fetch_wait);
        if (!Types::sequential)
            if (status s = land_prefetch(lanes, prefetched); !s) return abandon(lanes, flying, none, s);
        while (flying != none) {
            std::uint32_t next = none;
            if (!Types::sequential) {
                next = plan(lanes, at, flying);
                if (status s = submit(lanes, next); !s) return abandon(lanes, flying, next, s);
            }
            if (status s =
                    attention_.tile().in_use() ? gather_batch(lanes, flying) : attend_batch(lanes, flying);
                !s)
                return abandon(lanes, flying, next, s);
            finish_batch(lanes, flying);
            flying = next != none ? next : plan(lanes, at, none);
            if (next == none)
                if (status s = submit(lanes, flying); !s) return abandon(lanes, flying, none, s);
        }
        if (at.lane < lanes.size()) return no_frames();
        if (waits) meanwhile();
        timed.enter(&phase_times::attend);
        attention_.attend_tile(lanes, q);
        if (!in.lse.empty()) attention_.tell_lse(lanes, in.lse);
        for (std::uint32_t i = 0; i < lanes.size(); ++i) attention_.end_lane(lanes, i, choice_.of(i), q);
        if constexpr (step_choice<Types>::by_errors) output_ = attention_.squared_output(lanes);
        for (std::uint32_t i = 0; i < lanes.size(); ++i)
            attention_.finish_lane(lanes[i], attention_.total_of(i), in, 0, out);
        return {};
    }

    /// The next batch into whichever step io_batch is not `busy`; none when there is nothing (or no frame)
    /// left.
    std::uint32_t plan(std::span<const lane_ref> lanes, cursor& at, std::uint32_t busy) noexcept {
        if (at.lane >= lanes.size()) return none;
        const std::uint32_t id = busy == 0 ? 1 : 0;
        store_->io().at(id).clear();
        fill_io_batch(lanes, at, id, true);
        return store_->io().at(id).items().empty() ? none : id;
    }

    void fill_io_batch(std::span<const lane_ref> lanes, cursor& at, std::uint32_t id,
                       bool with_forced) noexcept {
        io_batch& f = store_->io().at(id);
        for (; at.lane < lanes.size(); ++at.lane, at.i = 0) {
            const lane l = store_->at(lanes[at.lane].id);
            pool& frames = store_->pool_of(lanes[at.lane].id);
            const std::span<const chosen_unit> chosen = choice_.of(at.lane);
            const std::uint32_t forced = choice_.forced(at.lane);
            for (; at.i < chosen.size() + (with_forced && forced != none ? 1 : 0); ++at.i) {
                if (!f.item_room()) return;
                const chosen_unit c =
                    at.i < chosen.size() ? chosen[at.i] : chosen_unit{.unit = forced, .mask = 0};
                const std::uint32_t item = f.add_item({c, at.lane});
                const auto& now = l.residency(c.unit);
                if (now.frames() == none) {
                    if (!store_->plan_load(lanes[at.lane].id, c.unit, id, item)) {
                        f.drop_item();
                        return;
                    }
                    f.items()[item].loads = true;
                }
                store_->pin(now, frames);
            }
        }
    }

    status submit(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        if (id == none) return {};
        io_batch& f = store_->io().at(id);
        status s = store_->io().submit_reads(id, store_->write_pool(lanes[0].id));
        store_->stats().decode_reads += f.requests();
        return s;
    }

    /// Computes the partial of every item as it lands, and merges it once those before it are. One whose turn it is
    /// needs no place of its own: the first one's is free, and warm.
    [[nodiscard]] status attend_batch(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        io_batch& f = store_->io().at(id);
        std::size_t left = f.items().size();
        std::uint32_t merged = 0;
        const phase_clock::span timed(p_.clock, &phase_times::attend);
        for (;;) {
            for (std::uint32_t i = 0; i < f.items().size(); ++i) {
                work_item& w = f.items()[i];
                if (w.done || w.pending > 0) continue;
                if (!f.error().ok()) return f.error();
                w.done = true;
                --left;
                const lane_ref& ref = lanes[w.lane];
                if (w.loads) store_->finish_load(store_->at(ref.id), w.unit, id, store_->pool_of(ref.id));
                float* const at = attention_.item_of(i == merged ? 0 : i);
                if (w.mask != 0)
                    attention_.attend_unit(ref, w, q_, at, true, attention_.coming_item(lanes, f, i + 1));
                if (i != merged) continue;
                merge_item(w, at);
                for (++merged; merged < f.items().size() && f.items()[merged].done; ++merged)
                    merge_item(f.items()[merged], attention_.item_of(merged));
            }
            if (left == 0) break;
            timed.enter(&phase_times::fetch_wait);
            store_->io().poll(true);
            timed.enter(&phase_times::attend);
        }
        return f.error();
    }
    /// The same for small units: one after the other they join the tile of their lane.
    [[nodiscard]] status gather_batch(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        io_batch& f = store_->io().at(id);
        const phase_clock::span timed(p_.clock, &phase_times::attend);
        const std::uint32_t ahead = attention_.units_ahead();
        attention_.ask_for_items(lanes, f, 0, ahead);
        for (std::uint32_t i = 0; i < f.items().size(); ++i) {
            work_item& w = f.items()[i];
            if (w.pending > 0) {
                timed.enter(&phase_times::fetch_wait);
                while (w.pending > 0) store_->io().poll(true);
                timed.enter(&phase_times::attend);
                attention_.ask_for_items(lanes, f, i, ahead); // what was in the air with it
            }
            if (!f.error().ok()) return f.error();
            w.done = true;
            const lane_ref& ref = lanes[w.lane];
            if (w.loads) store_->finish_load(store_->at(ref.id), w.unit, id, store_->pool_of(ref.id));
            attention_.ask_for_items(lanes, f, i + ahead, 1);
            attention_.gather_unit(lanes, w, q_);
        }
        return f.error();
    }

    void merge_item(const work_item& w, float* item) noexcept {
        if (w.mask == 0) return;
        for (std::uint32_t h = 0; h < p_.model.lane_heads; ++h)
            merge(attention_.head_partial(attention_.total_of(w.lane), h), attention_.head_partial(item, h));
    }

    void finish_batch(std::span<const lane_ref> lanes, std::uint32_t id) noexcept {
        for (const work_item& w : store_->io().at(id).items()) {
            store_->unpin(store_->at(lanes[w.lane].id).residency(w.unit), store_->pool_of(lanes[w.lane].id));
            drop_if_used(lanes[w.lane].id, w.unit);
        }
        store_->release_carriers(id, store_->pool_of(lanes[0].id));
    }

    /// For presets that keep nothing: a unit that nobody pins any more leaves.
    void drop_if_used(std::uint32_t lane_id, std::uint32_t u) noexcept {
        if (Types::keeps_nothing) {
            const lane l = store_->at(lane_id);
            pool& frames = store_->pool_of(lane_id);
            if (l.residency(u).frames() != none && frames[l.residency(u).frames()].pins == 0)
                store_->evict(l, u, frames);
        }
    }

    /// After an error: waits for what is in the air and takes units out whose pages did not all arrive.
    status abandon(std::span<const lane_ref> lanes, std::uint32_t a, std::uint32_t b,
                   const status& why) noexcept {
        for (const std::uint32_t id : {a, b}) {
            if (id == none) continue;
            store_->io().drain(id);
            for (const work_item& w : store_->io().at(id).items()) {
                const lane l = store_->at(lanes[w.lane].id);
                pool& frames = store_->pool_of(lanes[w.lane].id);
                store_->unpin(l.residency(w.unit), frames);
                if (w.loads) store_->evict(l, w.unit, frames);
            }
            store_->release_carriers(id, store_->pool_of(lanes[0].id));
        }
        return why;
    }

    /// visit(keys, values) for the records of every unit of a lane, in unit order.
    template <class Visit>
    [[nodiscard]] status read_all_units(const lane_ref& ref, const lane& l, Visit&& visit) noexcept {
        if constexpr (Types::sequential && !Types::values_only) return store_->scan(ref.id, visit);
        const std::span<const lane_ref> one(&ref, 1);
        for (std::uint32_t u = 0; u < l.state().units;) {
            io_batch& f = store_->io().at(0);
            f.clear();
            for (; u < l.state().units && f.item_room(); ++u) {
                const std::uint32_t item = f.add_item({{.unit = u}});
                const auto& now = l.residency(u);
                if (now.frames() != none)
                    store_->touch(now, store_->pool_of(ref.id));
                else if (!store_->plan_load(ref.id, u, 0, item)) {
                    f.drop_item();
                    break;
                } else
                    f.items()[item].loads = true;
                store_->pin(now, store_->pool_of(ref.id));
            }
            if (f.items().empty()) return no_frames();
            if (status s = submit(one, 0); !s) return abandon(one, 0, none, s);
            store_->io().drain(0);
            if (!f.error().ok()) return abandon(one, 0, none, f.error());
            for (const work_item& w : f.items()) {
                if (w.loads) store_->finish_load(l, w.unit, 0, store_->pool_of(ref.id));
                attention_.visit_unit(ref, w.unit, visit);
            }
            finish_batch(one, 0);
        }
        return {};
    }

    [[nodiscard]] bool plan_back(std::span<const lane_ref> lanes, std::uint32_t i, std::uint32_t u) noexcept {
        io_batch& f = store_->io().at(0);
        if (!f.item_room()) return false;
        const std::uint32_t item = f.add_item({{.unit = u, .mask = 0}, i});
        if (!store_->plan_load(lanes[i].id, u, 0, item)) return f.drop_item(), false;
        f.items()[item].loads = true;
        store_->pin(store_->at(lanes[i].id).residency(u), store_->pool_of(lanes[i].id));
        return true;
    }
    [[nodiscard]] status finish_back(std::span<const lane_ref> lanes) noexcept {
        io_batch& f = store_->io().at(0);
        if (f.items().empty()) return {};
        status s = submit(lanes, 0);
        store_->io().drain(0);
        if (s.ok()) s = f.error();
        if (!s) return abandon(lanes, 0, none, s);
        for (const work_item& w : f.items())
            store_->finish_load(store_->at(lanes[w.lane].id), w.unit, 0, store_->pool_of(lanes[w.lane].id));
        finish_batch(lanes, 0);
        f.clear();
        return {};
    }

    /// Reads the unit with most waiting entries and merges them (outside a step). On failure they go on
    /// waiting.
    [[nodiscard]] status force_load(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t u = l.fullest_buffered();
        if (u == none) return {};
        pool& frames = store_->pool_of(lane_id);
        if (l.residency(u).frames() == none) {
            const lane_ref ref{lane_id, 0};
            const std::span<const lane_ref> one(&ref, 1);
            io_batch& f = store_->io().at(0);
            f.clear();
            const std::uint32_t item = f.add_item({{.unit = u, .mask = 0}});
            if (!store_->plan_load(lane_id, u, 0, item)) return no_frames();
            f.items()[item].loads = true;
            store_->pin(l.residency(u), frames);
            ++store_->stats().forced_loads;
            status s = submit(one, 0);
            store_->io().drain(0);
            if (s.ok()) s = f.error();
            if (!s) return abandon(one, 0, none, s);
            store_->finish_load(l, u, 0, frames);
            finish_batch(one, 0);
        }
        p_.growth->merge_buffered(lane_id);
        return {};
    }

    store* store_ = nullptr;
    parts p_{};
    step_choice<Types> choice_;
    step_attention<Types> attention_;
    std::span<simd::neighbour> leaves_;
    const float* q_ = nullptr; ///< during a step
    float output_ = 0;         ///< squared length of the last step's output
};

}} // namespace kvtl::v0
