// How units grow during decode: entries that leave the window are appended, split their unit, or wait in the
// buffer.
//
// The clusterer decides, this class carries out: pages, tails, relocation, splits, statistics. Every function
// either completes or changes nothing; an entry that cannot be placed for now stays in the window.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/summaries.hpp>
#include <kvtl/core/store/unit_store.hpp>
#include <kvtl/policies/support/halve.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/clusterer.hpp>

#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class unit_growth {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;
    using clusterer_state = typename Types::clusterer_state;
    /// The clusterer lets entries wait in the window until it can make several units of them at once.
    static constexpr bool batches = Types::batches;
    /// The index names the units that an entry may join.
    static constexpr bool among_few = narrows_units<typename Types::index> && assigns_among_some<clusterer>;
    static_assert(!batches || !summaries<Types>::gathers,
                  "[kvtl] estimator: one that gathers entries needs a clusterer that adds them one by one; a "
                  "batch that could not be written is undone");

    /// Where an entry belongs can be found out before its turn.
    static constexpr bool foresees =
        !batches && detail::assigns_near<clusterer_state, typename clusterer::lane>;

    /// What placing, splitting and clustering need while they work, in memory that a step's sums have at other times.
    /// width: numbers of a row; split_rows: rows().
    struct scratch {
        static constexpr std::uint32_t some_rows = 16; ///< decoded at once
        std::span<float> key, mean;                    ///< (width)
        std::span<float> distance;                     ///< (max_units)
        std::span<float> spread;                       ///< (width) of the lane, before a batch joins it
        record_rows<Types> entries;                    ///< (split_rows) of a split or a batch
        std::span<std::byte> record;                   ///< of the entry on its way to its page
        std::span<std::uint8_t> side;                  ///< (split_rows)
        std::span<std::byte> halve;     ///< halve_scratch_bytes(split_rows, width), or for clustering a batch
        std::span<std::uint32_t> label; ///< (spare) units of a batch
        std::span<std::uint32_t> frames; ///< (frames of both children)
        row_tile<Types> tile;            ///< stored rows on their way to sums
        narrowing few;                   ///< for an index that narrows

        /// Rows of the largest split: a full unit, everything buffered and the new entry, but never more than
        /// two units. Or those of a batch.
        [[nodiscard]] static std::uint32_t rows(const lane_sizes& s, std::uint32_t max_entries) noexcept {
            return std::max(std::min(max_entries + s.buffer + 1, 2 * max_entries), batches ? s.spare : 0);
        }
        static scratch take(carver& c, const lane_sizes& s, std::uint32_t max_entries,
                            std::uint32_t page_rows) noexcept {
            const std::uint32_t n = rows(s, max_entries);
            scratch out;
            out.key = c.take<float>(s.width);
            out.mean = c.take<float>(clusterer::clusters_prompt ? s.width : 0);
            out.distance = c.take<float>(s.max_units);
            out.spread = c.take<float>(batches && s.spread ? s.width : 0);
            out.entries = record_rows<Types>::take(c, n, s.width, s.record);
            out.record = c.take<std::byte>(record_scratch<Types>(s.record));
            out.side = c.take<std::uint8_t>(n);
            out.halve =
                c.take<std::byte>(clusterer::adapts ? halve_scratch_bytes(n, s.width) : s.batch_scratch);
            out.label = c.take<std::uint32_t>(batches ? s.spare : 0);
            out.frames = c.take<std::uint32_t>(n / page_rows + 2);
            out.tile = row_tile<Types>::take(c, some_rows, s.width);
            if (among_few) out.few = narrowing::take(c, s.max_units, s.width);
            return out;
        }
    };

    unit_growth() = default;
    unit_growth(store& s, const clusterer_state& c, const summaries<Types>& sums, const scratch& x) noexcept
        : store_(&s), sums_(&sums), clusterer_(&c), x_(x) {}

    /// What the clusterer sees of a lane.
    [[nodiscard]] units_view view(std::uint32_t lane_id) const noexcept {
        const lane l = store_->at(lane_id);
        const lane_state& s = l.state();
        units_view u{s.units > 0 ? &l.unit(0) : nullptr,
                     s.units,
                     l.means(),
                     l.sizes().width,
                     clusterer_->max_entries(),
                     s.tokens,
                     store_->may_grow(lane_id),
                     sums_->index_of(lane_id)};
        u.spread = l.spread();
        return u;
    }

    /// True while the window holds more than it should.
    [[nodiscard]] bool overdue(const lane& l) const noexcept {
        return l.state().tokens - l.state().window_begin >= l.sizes().window + l.sizes().spare;
    }

    static constexpr simd::neighbour nothing_known{none};
    /// The mean nearest to the entry that leaves the window once the next token has arrived: asked right after units were
    /// scored, which finds all means in cache. It holds until a unit of the lane changes. Or nothing_known.
    [[nodiscard]] simd::neighbour foresee(std::uint32_t lane_id) const noexcept {
        const lane l = store_->at(lane_id);
        const lane_state& s = l.state();
        const bool leaves = s.tokens >= l.sizes().sinks &&
                            s.tokens + 1 - s.window_begin >= l.sizes().window + l.sizes().spare;
        if (!leaves || !s.clustered || s.units == 0 || l.will_merge()) return nothing_known;
        simd::decode(l.window_k(s.window_begin), x_.key.data(), l.sizes().width);
        const units_view u = worth_comparing(view(lane_id));
        simd::neighbour nearest = u.nearest_mean(x_.key.data(), x_.distance.data());
        nearest.index = u.id(static_cast<std::uint32_t>(nearest.index));
        return nearest;
    }

    /// The oldest entry of the window goes to a unit or to the buffer. False: not possible
    /// now (a write failed), the entry stays where it is. `nearest`: what foresee() has found, if that still holds.
    [[nodiscard]] bool place_oldest(std::uint32_t lane_id,
                                    const simd::neighbour& nearest = nothing_known) noexcept
        requires(!batches) {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        const element_type* k = l.window_k(s.window_begin);
        const element_type* v = l.window_v(s.window_begin);
        if (s.buffered >= l.sizes().buffer) return false;
        if (!place_entry(lane_id, k, v,
                         {l.position_of(s.window_begin), l.weight_at(l.window_w(s.window_begin))}, nearest))
            return false;
        ++s.window_begin;
        return true;
    }

    /// The oldest batch of the window becomes units of its own, all of its entries or none. False: not possible now.
    [[nodiscard]] bool place_oldest(std::uint32_t lane_id) noexcept requires(batches) {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        const std::uint32_t n = l.sizes().spare, before = s.units;
        std::copy_n(l.spread().begin(), x_.spread.size(), x_.spread.begin());
        decltype(auto) codec = store_->codec(lane_id);
        for (std::uint32_t t = s.window_begin; t < s.window_begin + n; ++t)
            x_.entries.set(codec, t - s.window_begin, l.window_k(t), l.window_v(t),
                           {l.position_of(t), l.weight_at(l.window_w(t))});
        const rows_view<element_type> keys = x_.entries.keys(0, n);
        const std::uint32_t units = clusterer_->group_batch(keys, x_.halve, x_.label.data());
        for (std::uint32_t label = 0; label < units; ++label)
            if (!place_group(lane_id, label)) {
                take_back(lane_id, before);
                std::copy(x_.spread.begin(), x_.spread.end(), l.spread().begin());
                return false;
            }
        s.clustered = true;
        s.window_begin += n;
        return true;
    }

    /// Entries that wait for units that are resident now join them: a flagged unit splits with all of them
    /// (Algorithm 1), others take them one by one under the usual rule. False: no unit has changed.
    bool merge_buffered(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        bool changed = false;
        for (std::uint32_t i = 0; i < l.state().buffered;) {
            const std::uint32_t u = l.buffer_unit(i);
            const auto& now = l.residency(u);
            const std::uint32_t before = l.state().buffered;
            if (now.frames() != none) {
                changed = true;
                store_->pin(now, frames);
                const std::uint32_t pinned = now.frames();
                merge_unit(lane_id, u);
                release_pin(frames, pinned);
            }
            i = l.state().buffered < before ? 0 : i + 1; // rows moved up: look again from the start
        }
        return changed;
    }

    /// Pages that `tokens` more tokens of a lane may take from the end of the file, and what waits in it.
    [[nodiscard]] std::uint32_t worst_case_pages(const lane& l, std::uint32_t tokens) const noexcept {
        const lane_state& s = l.state();
        std::uint32_t units = std::min(s.buffered + tokens, clusterer_->max_units(s.tokens + tokens));
        if constexpr (batches) {
            const std::uint32_t batch = store_->lanes().sizes.spare;
            units = (units / batch + 1) * clusterer_->batch_units(batch);
        }
        return (units + 1) * store_->layout().run_pages();
    }

  private:
    struct new_entry {
        const element_type* k;
        const element_type* v;
        entry_facts facts;
        entry_record record;
    };

    [[nodiscard]] new_entry entry_of(std::uint32_t lane_id, const element_type* k, const element_type* v,
                                     const entry_facts& facts) const noexcept {
        const record_bytes most = store_->format().record;
        return {k, v, facts, record_of<Types>(store_->codec(lane_id), most, k, v, facts, x_.record)};
    }
    [[nodiscard]] static entry_facts facts_of_waiting(const lane& l, std::uint32_t i) noexcept {
        return {l.position_of_buffered(i), l.weight_at(l.buffer_w(i))};
    }
    [[nodiscard]] new_entry waiting_entry(std::uint32_t lane_id, std::uint32_t i) const noexcept {
        const lane l = store_->at(lane_id);
        return entry_of(lane_id, l.buffer_k(i), l.buffer_v(i), facts_of_waiting(l, i));
    }

    bool place_entry(std::uint32_t lane_id, const element_type* k, const element_type* v,
                     const entry_facts& facts, const simd::neighbour& nearest) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const assignment a = assign(lane_id, k, nearest);
        const new_entry e = entry_of(lane_id, k, v, facts);
        if (a.how == growth::open) {
            if (open_unit(lane_id, a.unit, e)) return true;
            if (l.state().units == 0) return false;
            l.push_buffer(a.unit != none ? a.unit : l.state().units - 1, k, v, facts.log_weight,
                          facts.position);
            return true;
        }
        const unit_record& unit = l.unit(a.unit);
        if (a.how == growth::append) {
            if (unit.buffered == 0 && append(lane_id, a.unit, e)) return true;
        } else {
            if (const auto& now = l.residency(a.unit); now.frames() != none) {
                store_->pin(now, frames);
                const std::uint32_t pinned = now.frames();
                const bool done = split(lane_id, a.unit, &e);
                release_pin(frames, pinned);
                if (done) return true;
            }
            l.unit(a.unit).flagged = true;
        }
        l.push_buffer(a.unit, k, v, facts.log_weight, facts.position);
        return true;
    }

    [[nodiscard]] assignment assign(std::uint32_t lane_id, const element_type* k,
                                    const simd::neighbour& nearest = nothing_known) noexcept {
        const lane l = store_->at(lane_id);
        const units_view u = view(lane_id);
        if (clusterer::clusters_prompt && !l.state().clustered) { // too few entries: units are sequential
            if (u.count == 0) return {none, growth::open};
            const unit_record& last = u.unit[u.count - 1];
            if (last.entries + last.buffered < clusterer_->sequential_entries())
                return {u.count - 1, growth::append};
            return {none, growth::open};
        }
        simd::decode(k, x_.key.data(), l.sizes().width);
        const auto before = l.clusterer();
        if constexpr (foresees)
            if (nearest.index != none) { // alone in view: if it has no room, one that has is looked for below
                const auto unit = static_cast<std::uint32_t>(nearest.index);
                const assignment a = clusterer_->assign_near(l.clusterer(), {0, nearest.distance},
                                                             x_.key.data(), u.only({&unit, 1}), x_.distance);
                if (a.how != growth::open) return {unit, a.how};
                l.clusterer() = before;
            }
        const units_view few = worth_comparing(u);
        assignment a = clusterer_->assign(l.clusterer(), x_.key.data(), few, x_.distance);
        if (a.unit != none) a.unit = few.id(a.unit);
        if (!among_few || a.how != growth::open || few.hidden == 0) return a;
        l.clusterer() = before; // none of these has room: one of all units may have
        return clusterer_->assign(l.clusterer(), x_.key.data(), u, x_.distance);
    }
    /// Those units that an entry may belong to, whose key is x_.key: all, or few that the index names.
    [[nodiscard]] units_view worth_comparing(const units_view& u) const noexcept {
        if constexpr (among_few)
            return u.only(x_.few.unit.first(sums_->index().near(x_.key.data(), u, x_.few)));
        return u;
    }

    // -------------------------------------------------------------------------------------------------------
    // entries that join units, pages that units have
    /// A unit of its own for an entry; its mean starts as that of unit `like`, unless that is none.
    bool open_unit(std::uint32_t lane_id, std::uint32_t like, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        if (!store_->may_add_unit(lane_id)) return false;
        unit_record fresh;
        if (!store_->place_unit(lane_id, 1, fresh.where)) return false;
        const std::uint32_t u = s.units++;
        l.begin_unit(u, fresh);
        if (store::ragged) l.extent(u) = {};
        if (!append(lane_id, u, e)) {
            --s.units;
            store_->release_place(lane_id, fresh.where);
            return false;
        }
        if (Types::means)
            if (like != none) l.means().copy(like, u);
        return true;
    }

    /// Adds an entry to a unit. False when the unit is cold and its last page is on storage or it may share its place,
    /// or when it cannot grow.
    bool append(std::uint32_t lane_id, std::uint32_t u, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const auto& now = l.residency(u);
        const bool was_resident = now.frames() != none;
        const std::uint32_t pinned = now.frames();
        if (was_resident) store_->pin(now, frames);
        const bool done = append_row(lane_id, u, e, frames);
        if (was_resident) release_pin(frames, pinned);
        if (!done) return false;
        if (now.frames() != none) store_->note_resident(l, u, frames, true);
        return true;
    }

    /// Statistics of lane and unit when an entry joins. keep_mean() behind the last of some.
    void join(std::uint32_t lane_id, std::uint32_t u, const element_type* k, const element_type* v,
              std::byte* running) noexcept {
        if (Types::spread)
            if (moves_mean(lane_id))
                sums_->gather_spread(lane_id, u, store_->at(lane_id).unit(u).entries, k, v, running);
        note_entry(lane_id, u, k, v, running);
    }
    /// Those of the unit, which may have had this entry before.
    void note_entry(std::uint32_t lane_id, std::uint32_t u, const element_type* k, const element_type* v,
                    std::byte* running) noexcept {
        unit_record& unit = store_->at(lane_id).unit(u);
        sums_->absorb(lane_id, u, unit.entries, k, v, running);
        if (Types::means)
            if (moves_mean(lane_id)) sums_->absorb_mean(lane_id, u, unit.entries, k, unit.m2, running);
        ++unit.entries;
    }
    void keep_mean(std::uint32_t lane_id, std::uint32_t u, const std::byte* running) noexcept {
        if (Types::means)
            if (moves_mean(lane_id)) sums_->keep_mean(lane_id, u, running);
    }
    /// Unpins the frame that headed a unit's chain when it was pinned; the chain may be gone by now.
    static void release_pin(pool& frames, std::uint32_t head) noexcept {
        if (frames[head].pins > 0) --frames[head].pins;
    }

    bool append_row(std::uint32_t lane_id, std::uint32_t u, const new_entry& e, pool& frames) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        auto& now = l.residency(u);
        const auto& format = store_->format();
        const bool fresh = !store_->last_page_takes(l, u, e.record.bytes);
        std::uint32_t tail = store_->tail_of(now, frames);
        if (unit.shared) {
            if (now.frames() == none)
                return false; // even if it is the last owner: no branch decides by what others did
            const std::uint32_t pages = store_->pages_of(l, u) + (fresh ? 1 : 0);
            if (store_->shares_place(unit) && !relocate(lane_id, u, pages, !fresh)) return false;
        }
        if (store::ragged && fresh && tail != none) { // the page is full: this entry is too large for it
            format.pad(frames.bytes(tail), 0);
            if (now.lone_tail() == tail) now.clear();
            store_->seal(frames, std::exchange(tail, none));
        }
        std::uint32_t f = tail;
        if (fresh) {
            const std::uint32_t page = store_->pages_of(l, u);
            if (page + 1 > store_->layout().capacity(unit.where) && !relocate(lane_id, u, page + 1, false))
                return false;
            f = store_->acquire(frames, lane_id);
            if (f == none) return false;
            frames[f].page = store_->layout().page(unit.where, page);
            frames[f].lane = lane_id;
            frames[f].unit = u;
            if (unit.entries == 0 || now.frames() != none)
                store_->link(now, frames, f);
            else
                now.set_lone_tail(f);
        } else if (f == none) {
            if (now.frames() == none) return false;
            f = store_->last_of(now, frames);
            if (!store_->writable(frames, f)) return false;
        }
        const bool goes_on = tail == f;
        store_->make_tail(frames, f);
        std::byte* running = frames.running(f);
        if (!goes_on) take_up(lane_id, u, frames, running);
        store_->put(l, u, frames.bytes(f), e.record, fresh);
        join(lane_id, u, e.k, e.v, running);
        keep_mean(lane_id, u, running);
        if (!store::ragged && unit.entries % format.rows == 0) {
            format.pad(frames.bytes(f), format.rows);
            if (now.lone_tail() == f) now.clear();
            store_->seal(frames, f);
        }
        return true;
    }

    [[nodiscard]] bool moves_mean(std::uint32_t lane_id) const noexcept {
        return clusterer::updates_means || !store_->at(lane_id).state().clustered;
    }

    /// A unit begins or takes up again its unfinished page: what is summed exactly beside it begins anew, from the
    /// unit's entries where they are resident.
    void take_up(std::uint32_t lane_id, std::uint32_t u, pool& frames, std::byte* running) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        if (unit.entries == 0 || !sums_->rounds()) return;
        if (l.residency(u).frames() == none) return sums_->resume(lane_id, u, unit.entries, running);
        const auto& format = store_->format();
        decltype(auto) codec = store_->codec(lane_id);
        const float m2 = unit.m2;
        const std::uint32_t entries = std::exchange(unit.entries, 0);
        for (std::uint32_t f = l.residency(u).frames(), left = entries; left > 0; f = frames[f].next) {
            const std::uint32_t rows = format.entries_in(frames.bytes(f), left);
            const std::size_t width = l.sizes().width;
            x_.tile.show(codec, format.keys(frames.bytes(f), 0, rows),
                         format.values(frames.bytes(f), 0, rows),
                         [&](std::size_t, const element_type* k, const element_type* v, std::size_t n) {
                             for (std::size_t i = 0; i < n; ++i)
                                 note_entry(lane_id, u, k + i * width, v + i * width, running);
                         });
            left -= rows;
        }
        unit.m2 = m2;
    }

    /// Moves a resident unit to a longer run, or to a place of its own. but_last: its last page is about to change and is
    /// not written yet.
    bool relocate(std::uint32_t lane_id, std::uint32_t u, std::uint32_t pages, bool but_last) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        unit_record& unit = l.unit(u);
        const auto& now = l.residency(u);
        if (now.frames() == none || !store_->settle_writes(lane_id, u, frames)) return false;
        place where;
        if (!store_->place_unit(lane_id, pages, where)) return false;
        if (store_->layout().capacity(where) < pages) {
            store_->release_place(lane_id, where);
            return false;
        }
        store_->release_place(lane_id, std::exchange(unit.where, where));
        std::uint32_t i = 0;
        for (std::uint32_t f = now.frames(); f != none; f = frames[f].next) {
            frames[f].page = store_->layout().page(where, i++);
            if (!but_last || frames[f].next != none) store_->queue_write(frames, f);
        }
        statistics& s = store_->stats();
        if (unit.shared) {
            unit.shared = false;
            s.bytes_moved_by_forks += store_->bytes_of(l, u);
        } else {
            s.bytes_moved_by_updates += store_->bytes_of(l, u);
            s.bytes_moved_by_appends += store_->bytes_of(l, u);
        }
        return true;
    }

    // -------------------------------------------------------------------------------------------------------
    // batches
    /// The batch's rows of one label become a unit, whose pages are written at once: it will not grow.
    [[nodiscard]] bool place_group(std::uint32_t lane_id, std::uint32_t label) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        lane_state& s = l.state();
        const auto& format = store_->format();
        unit_record fresh;
        const std::uint32_t n = l.sizes().spare;
        const auto of_label = [&](std::uint32_t i) { return x_.label[i] == label; };
        const std::uint32_t pages = pages_for(n, of_label);
        if (!store_->may_add_unit(lane_id) || !store_->place_unit(lane_id, pages, fresh.where)) return false;
        std::uint32_t taken = 0;
        for (; taken < pages; ++taken)
            if ((x_.frames[taken] = store_->acquire(frames, lane_id)) == none) break;
        if (taken < pages) {
            while (taken > 0) frames.settle(x_.frames[--taken]);
            store_->release_place(lane_id, fresh.where);
            return false;
        }
        const std::uint32_t u = s.units++;
        l.begin_unit(u, fresh);
        const unit_record& unit = l.unit(u);
        put_entries(lane_id, u, n, of_label, x_.frames);
        for (std::uint32_t i = 0; i < pages; ++i) {
            const std::uint32_t f = x_.frames[i];
            frames[f].page = store_->layout().page(unit.where, i);
            frames[f].lane = lane_id;
            frames[f].unit = u;
            format.pad(frames.bytes(f), std::min(format.rows, unit.entries - i * format.rows));
            store_->link(l.residency(u), frames, f);
            store_->queue_write(frames, f);
        }
        store_->note_resident(l, u, frames, true);
        return true;
    }

    /// Undoes the units from `first` on: their entries are still in the window, so a write that failed is
    /// void.
    void take_back(std::uint32_t lane_id, std::uint32_t first) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        for (std::uint32_t& units = l.state().units; units > first;) {
            const std::uint32_t u = --units;
            if (!store_->settle_writes(lane_id, u, frames))
                for (std::uint32_t f = 0; f < frames.size(); ++f)
                    if (frames[f].failed && frames[f].lane == lane_id && frames[f].unit == u)
                        frames.write_finished(f, true);
            if (l.residency(u).frames() != none) store_->evict(l, u, frames);
            store_->release_place(lane_id, l.unit(u).where);
        }
    }

    void merge_unit(std::uint32_t lane_id, std::uint32_t u) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        if (unit.flagged && split(lane_id, u, nullptr)) {
            ++store_->stats().delayed_splits;
            return;
        }
        unit.flagged = false;
        for (std::uint32_t i = 0; i < l.state().buffered && unit.buffered > 0;) {
            if (l.buffer_unit(i) != u) {
                ++i;
                continue;
            }
            const new_entry e = waiting_entry(lane_id, i);
            growth how = growth::append;
            if constexpr (clusterer::clusters_prompt) {
                if (l.state().clustered) {
                    simd::decode(e.k, x_.key.data(), l.sizes().width);
                    l.means().get(u, x_.mean.data());
                    const float distance = simd::l2sq(x_.key.data(), x_.mean.data(), l.sizes().width);
                    how = clusterer_->judge(l.clusterer(), unit, distance, view(lane_id));
                }
            }
            if (how == growth::split) {
                if (split(lane_id, u, nullptr)) ++store_->stats().delayed_splits;
                return; // refused for want of frames or storage: they go on waiting
            }
            if (how == growth::append && append(lane_id, u, e)) {
                l.erase_buffer(i);
            } else if (!move_elsewhere(lane_id, i)) {
                ++i;
            }
        }
    }

    /// A buffered entry whose unit is full and may not split waits for the nearest unit that has room
    /// instead.
    bool move_elsewhere(std::uint32_t lane_id, std::uint32_t i) noexcept {
        const lane l = store_->at(lane_id);
        const std::uint32_t from = l.buffer_unit(i);
        const assignment a = assign(lane_id, l.buffer_k(i));
        const new_entry e = waiting_entry(lane_id, i);
        if (a.how == growth::open) {
            if (!open_unit(lane_id, a.unit, e)) return false;
        } else if (a.how == growth::append && a.unit != from && append(lane_id, a.unit, e)) {
        } else {
            if (a.unit == none || a.unit == from) return false;
            --l.unit(from).buffered;
            ++l.unit(a.unit).buffered;
            l.buffer_unit(i) = a.unit;
            l.unit(a.unit).flagged |= a.how == growth::split;
            return false; // it still waits; the caller moves on
        }
        l.erase_buffer(i);
        return true;
    }

    // ------------------------------------------------------------------------------------------------------
    // splitting
    /// Splits a resident unit together with everything buffered for it and the new entry, if any. The larger
    /// side stays in the unit (at its own head on storage), the smaller becomes a new unit. Pages in front of the first
    /// entry that leaves stay as they are. Nothing stays in a place that other branches have, too.
    bool split(std::uint32_t lane_id, std::uint32_t u, const new_entry* extra) noexcept
        requires(clusterer::adapts) {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        lane_state& s = l.state();
        if (!store_->may_add_unit(lane_id) || !store_->settle_writes(lane_id, u, frames)) return refuse();
        const std::uint32_t old_entries = l.unit(u).entries;
        const std::uint32_t n = gather(lane_id, u, frames, extra);
        const rows_view<element_type> keys = x_.entries.keys(0, n);
        halve(keys, clusterer_->max_entries(), x_.halve, x_.side.data());
        std::uint32_t ones = 0;
        for (std::uint32_t i = 0; i < n; ++i) ones += x_.side[i];
        const std::uint8_t stays = ones * 2 > n ? 1 : 0;
        const auto goes_to = [this](std::uint8_t side) {
            return [this, side](std::uint32_t i) { return x_.side[i] == side; };
        };
        const std::uint32_t kept_pages = pages_for(n, goes_to(stays)),
                            child_pages = pages_for(n, goes_to(static_cast<std::uint8_t>(1 - stays)));

        unit_record child;
        place home = l.unit(u).where;
        // Entries that waited, or pages that break in other places, may need one page more than there is.
        const bool moves = store_->shares_place(l.unit(u)) || kept_pages > store_->layout().capacity(home);
        if (moves && !store_->place_unit(lane_id, kept_pages, home)) return refuse();
        if (!store_->place_unit(lane_id, child_pages, child.where)) {
            if (moves) store_->release_place(lane_id, home);
            return refuse();
        }
        std::uint32_t taken = 0;
        while (taken < kept_pages + child_pages) {
            const std::uint32_t f = store_->acquire(frames, lane_id);
            if (f == none) break;
            x_.frames[taken++] = f;
        }
        if (taken < kept_pages + child_pages) {
            while (taken > 0) frames.settle(x_.frames[--taken]);
            store_->release_place(lane_id, child.where);
            if (moves) store_->release_place(lane_id, home);
            return refuse();
        }

        std::uint32_t merged = n - old_entries - (extra != nullptr ? 1 : 0);
        for (std::uint32_t i = 0; merged > 0;) {
            if (l.buffer_unit(i) != u) {
                ++i;
                continue;
            }
            l.erase_buffer(i);
            --merged;
        }
        unit_record& parent = l.unit(u);
        if (const std::uint32_t tail = store_->tail_of(l.residency(u), frames); tail != none)
            frames.clear_dirty(tail);
        store_->evict(l, u, frames);
        parent.flagged = parent.buffered > 0; // more were waiting than two units hold
        const std::uint32_t same = moves ? 0 : unchanged_pages(old_entries, stays);
        if (moves) store_->release_place(lane_id, std::exchange(parent.where, home)), parent.shared = false;
        const std::uint32_t c = s.units++;
        l.begin_unit(c, child);
        unit_record as_it_was = parent;
        fill(lane_id, u, stays, n, x_.frames.first(kept_pages), same);
        as_it_was.change(same);
        parent.as_saved = as_it_was.as_saved;
        fill(lane_id, c, static_cast<std::uint8_t>(1 - stays), n, x_.frames.subspan(kept_pages, child_pages),
             0);
        ++store_->stats().splits;
        count_moved(same * store_->format().rows, old_entries, stays);
        return true;
    }
    static bool split(std::uint32_t, std::uint32_t, const new_entry*) noexcept requires(!clusterer::adapts) {
        return false;
    }
    /// Full pages of the first `stored` gathered entries, which storage had, that hold what they held: none of their
    /// entries leaves, nor one before them.
    [[nodiscard]] std::uint32_t unchanged_pages(std::uint32_t stored, std::uint8_t stays) const noexcept {
        if (store::ragged) return 0;
        std::uint32_t same = 0;
        while (same < stored && x_.side[same] == stays) ++same;
        return same / store_->format().rows;
    }
    /// What the split rewrites of the gathered entries that storage had, `from` to `stored`.
    void count_moved(std::uint32_t from, std::uint32_t stored, std::uint8_t stays) noexcept {
        statistics& s = store_->stats();
        for (std::uint32_t i = from; i < stored; ++i) {
            const std::size_t bytes = x_.entries.record(i).bytes.entry();
            s.bytes_moved_by_updates += bytes;
            (x_.side[i] == stays ? s.bytes_moved_by_staying_children : s.bytes_moved_by_leaving_children) +=
                bytes;
        }
    }
    bool refuse() noexcept {
        ++store_->stats().refused_splits;
        return false;
    }

    /// Copies a unit's entries, its buffered ones and the new one to the split scratch, in order of arrival.
    std::uint32_t gather(std::uint32_t lane_id, std::uint32_t u, pool& frames,
                         const new_entry* extra) noexcept {
        const lane l = store_->at(lane_id);
        const auto& format = store_->format();
        decltype(auto) codec = store_->codec(lane_id);
        std::uint32_t n = 0;
        const auto put = [&](const element_type* k, const element_type* v, const entry_facts& facts) {
            x_.entries.set(codec, n++, k, v, facts);
        };
        std::uint32_t f = l.residency(u).frames();
        for (std::uint32_t left = l.unit(u).entries; left > 0; f = frames[f].next) {
            const std::uint32_t rows = format.entries_in(frames.bytes(f), left);
            for (std::uint32_t row = 0; row < rows; ++row)
                x_.entries.load(codec, n++, format.entry(frames.bytes(f), row));
            left -= rows;
        }
        const std::uint32_t most = 2 * clusterer_->max_entries() - (extra != nullptr ? 1 : 0);
        for (std::uint32_t i = 0; i < l.state().buffered && n < most; ++i)
            if (l.buffer_unit(i) == u) put(l.buffer_k(i), l.buffer_v(i), facts_of_waiting(l, i));
        if (extra != nullptr) put(extra->k, extra->v, extra->facts);
        return n;
    }

    /// Pages that those of the first n entries of the scratch fill for which of(i) holds.
    template <class Of> [[nodiscard]] std::uint32_t pages_for(std::uint32_t n, Of&& of) const noexcept {
        const page_format& format = store_->format();
        page_format::page_counter count{format.page_bytes};
        std::uint32_t entries = 0;
        for (std::uint32_t i = 0; i < n; ++i) {
            if (!of(i)) continue;
            ++entries;
            if (store::ragged) count.add(x_.entries.record(i).bytes);
        }
        return store::ragged ? count.pages : format.pages_for(entries);
    }
    /// Puts them into the frames `with`, as the only entries of unit u.
    template <class Of>
    void put_entries(std::uint32_t lane_id, std::uint32_t u, std::uint32_t n, Of&& of,
                     std::span<const std::uint32_t> with) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        if (store::ragged) l.extent(u) = {};
        std::uint32_t begun = 0;
        for (std::uint32_t i = 0; i < n; ++i) {
            if (!of(i)) continue;
            const entry_record e = x_.entries.record(i);
            const bool fresh = !store_->last_page_takes(l, u, e.bytes);
            if (fresh) ++begun;
            store_->put(l, u, frames.bytes(with[begun - 1]), e, fresh);
            join(lane_id, u, x_.entries.key(i), x_.entries.value(i), sums_->building());
        }
        keep_mean(lane_id, u, sums_->building());
    }

    /// Makes unit u from the gathered rows of one side: frames, statistics, writes of its complete pages but the first
    /// `same`, of which storage has the same bytes.
    void fill(std::uint32_t lane_id, std::uint32_t u, std::uint8_t side, std::uint32_t n,
              std::span<const std::uint32_t> with, std::uint32_t same) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const auto& format = store_->format();
        unit_record& unit = l.unit(u);
        unit.entries = 0;
        unit.m2 = 0;
        put_entries(
            lane_id, u, n, [&](std::uint32_t i) { return x_.side[i] == side; }, with);
        for (std::uint32_t i = 0; i < with.size(); ++i) {
            frames[with[i]].lane = lane_id;
            frames[with[i]].unit = u;
            store_->link(l.residency(u), frames, with[i]);
            frames[with[i]].page = store_->layout().page(unit.where, i);
            const std::uint32_t rows = std::min(format.rows, unit.entries - i * format.rows);
            if (store::ragged ? i + 1 < with.size() : rows == format.rows) {
                format.pad(frames.bytes(with[i]), rows);
                if (i >= same) store_->queue_write(frames, with[i]);
            }
        }
        if (store::ragged || unit.entries % format.rows != 0) {
            store_->make_tail(frames, with.back());
            if (sums_->rounds())
                std::memcpy(frames.running(with.back()), sums_->building(), l.sizes().running);
        }
        store_->note_resident(l, u, frames, true);
    }

    store* store_ = nullptr;
    const summaries<Types>* sums_ = nullptr;
    const clusterer_state* clusterer_ = nullptr;
    scratch x_{};
};

}} // namespace kvtl::v0
