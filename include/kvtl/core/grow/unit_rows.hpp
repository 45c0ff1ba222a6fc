// How one entry joins a unit: the row of a page that it takes, the page's way to storage, the unit's
// statistics.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/summaries.hpp>
#include <kvtl/core/store/unit_store.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/moments.hpp>

#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class unit_rows {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;

    unit_rows() = default;
    unit_rows(store& s, const summaries<Types>& sums, const row_tile<Types>& tile) noexcept
        : store_(&s), sums_(&sums), tile_(tile) {}

    struct new_entry {
        const element_type* k;
        const element_type* v;
        entry_facts facts;
        entry_record record;
    };

    /// A unit of its own for an entry; its mean starts as that of unit `like`, unless that is none.
    bool open_unit(std::uint32_t lane_id, std::uint32_t like, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        if (!store_->may_add_unit(lane_id)) return false;
        unit_record fresh;
        if (!store_->layout().place_unit(1, fresh.where)) return false;
        const std::uint32_t u = s.units++;
        l.begin_unit(u, fresh);
        if constexpr (store::ragged) l.extent(u) = {};
        if (!append(lane_id, u, e)) {
            --s.units;
            store_->release_place(fresh.where);
            return false;
        }
        if constexpr (Types::means)
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
        if constexpr (Types::spread)
            if (moves_mean(lane_id))
                sums_->gather_spread(lane_id, u, store_->at(lane_id).unit(u).entries, k, v, running);
        note_entry(lane_id, u, k, v, running);
    }
    /// Those of the unit, which may have had this entry before.
    void note_entry(std::uint32_t lane_id, std::uint32_t u, const element_type* k, const element_type* v,
                    std::byte* running) noexcept {
        unit_record& unit = store_->at(lane_id).unit(u);
        sums_->absorb(lane_id, u, unit.entries, k, v, running);
        if constexpr (Types::means)
            if (moves_mean(lane_id)) sums_->absorb_mean(lane_id, u, unit.entries, k, unit.m2, running);
        ++unit.entries;
    }
    void keep_mean(std::uint32_t lane_id, std::uint32_t u, const std::byte* running) noexcept {
        if constexpr (Types::means)
            if (moves_mean(lane_id)) sums_->keep_mean(lane_id, u, running);
    }
    /// Unpins the frame that headed a unit's chain when it was pinned; the chain may be gone by now.
    static void release_pin(pool& frames, std::uint32_t head) noexcept {
        if (frames[head].pins > 0) --frames[head].pins;
    }

  private:
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
            tile_.show(codec, format.keys(frames.bytes(f), 0, rows), format.values(frames.bytes(f), 0, rows),
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
        if (!store_->layout().place_unit(pages, where)) return false;
        if (store_->layout().capacity(where) < pages) {
            store_->release_place(where);
            return false;
        }
        store_->release_place(std::exchange(unit.where, where));
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

    store* store_ = nullptr;
    const summaries<Types>* sums_ = nullptr;
    row_tile<Types> tile_; ///< stored rows on their way to sums
};

}} // namespace kvtl::v0
