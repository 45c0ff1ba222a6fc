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
    static constexpr bool by_entry = store::by_entry;

    unit_rows() = default;
    unit_rows(store& s, const summaries<Types>& sums) noexcept : store_(&s), sums_(&sums) {}

    struct new_entry {
        const element_type* k;
        const element_type* v;
        entry_facts facts;
        entry_record record;
        std::uint32_t stream; ///< entry-wise layouts: its place in the lane's stream
    };

    bool open_unit(std::uint32_t lane_id, std::uint32_t like, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        if (s.units >= l.sizes().max_units) return false;
        unit_record fresh;
        if constexpr (!by_entry)
            if (!store_->layout().place_unit(1, fresh.where)) return false;
        const std::uint32_t u = s.units++;
        l.begin_unit(u, fresh);
        if constexpr (store::ragged) l.extent(u) = {};
        if (!append(lane_id, u, e)) {
            --s.units;
            if constexpr (!by_entry) store_->layout().release(fresh.where);
            return false;
        }
        if constexpr (Types::means)
            if (like != none) std::memcpy(l.mean(u), l.mean(like), l.sizes().width * sizeof(float));
        return true;
    }

    /// Adds an entry to a unit. False when the unit is cold and its last page is on storage, or when it
    /// cannot grow.
    bool append(std::uint32_t lane_id, std::uint32_t u, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const auto& now = l.residency(u);
        const bool was_resident = now.frames != none;
        const std::uint32_t pinned = now.frames;
        if (was_resident) store_->pin(now, frames);
        bool done = false;
        if constexpr (by_entry)
            done = append_member(l, u, e, frames);
        else
            done = append_row(lane_id, u, e, frames);
        if (was_resident) release_pin(frames, pinned);
        if (!done) return false;
        note_entry(lane_id, u, e.k, e.v);
        if (now.frames != none) store_->note_resident(l, u, frames, true);
        return true;
    }

    bool append_row(std::uint32_t lane_id, std::uint32_t u, const new_entry& e, pool& frames) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        auto& now = l.residency(u);
        const auto& format = store_->format();
        const bool fresh = !store_->last_page_takes(l, u, e.record.bytes);
        if (store::ragged && fresh && now.tail != none) { // the page is full: this entry is too large for it
            format.pad(frames.bytes(now.tail), 0);
            store_->seal(frames, std::exchange(now.tail, none));
        }
        std::uint32_t f = now.tail;
        if (fresh) {
            const std::uint32_t page = store_->pages_of(l, u);
            if (page + 1 > store_->layout().capacity(unit.where) && !relocate(lane_id, u, page + 1))
                return false;
            f = store_->acquire(frames);
            if (f == none) return false;
            frames[f].page = store_->layout().page(unit.where, page);
            frames[f].lane = lane_id;
            frames[f].unit = u;
            if (unit.entries == 0 || now.frames != none) store_->link(now, frames, f);
        } else if (f == none) {
            if (now.frames == none) return false;
            f = now.frames;
            while (frames[f].next != none) f = frames[f].next;
            if (!store_->writable(frames, f)) return false;
        }
        now.tail = f;
        store_->make_tail(frames, f);
        store_->put(l, u, frames.bytes(f), e.record, fresh);
        if (!store::ragged && (unit.entries + 1) % format.rows == 0) {
            format.pad(frames.bytes(f), format.rows);
            now.tail = none;
            store_->seal(frames, f);
        }
        return true;
    }

    bool append_member(const lane& l, std::uint32_t u, const new_entry& e, pool& frames) noexcept {
        unit_record& unit = l.unit(u);
        auto& now = l.residency(u);
        const auto& format = store_->format();
        if (now.frames != none) { // keep the resident copy complete, or give it up
            std::uint32_t f = none;
            if (unit.entries % format.rows == 0) {
                f = store_->acquire(frames);
                if (f != none) {
                    frames[f].lane = frames[now.frames].lane;
                    frames[f].unit = u;
                    store_->link(now, frames, f);
                }
            } else {
                for (f = now.frames; frames[f].next != none;) f = frames[f].next;
            }
            if (f != none)
                format.put(frames.bytes(f), unit.entries % format.rows, e.record);
            else
                store_->evict(l, u, frames);
        }
        l.next_member(e.stream) = none;
        if (unit.entries == 0)
            unit.members = e.stream;
        else
            l.next_member(unit.last_member) = e.stream;
        unit.last_member = e.stream;
        return true;
    }

    /// Statistics after an entry has joined.
    void note_entry(std::uint32_t lane_id, std::uint32_t u, const element_type* k,
                    const element_type* v) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        if (unit.entries == 0) sums_->clear(lane_id, u);
        sums_->absorb(lane_id, u, unit.entries, k, v);
        if constexpr (Types::means) {
            if (clusterer::updates_means || !l.state().founded)
                simd::absorb(k, l.sizes().width, unit.entries, l.mean(u), unit.m2);
        }
        ++unit.entries;
        unit.updated = l.state().tokens;
    }

    /// Entry-wise layouts: the entry takes the next row of the lane's stream.
    bool stream_append(std::uint32_t lane_id, new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        lane_state& s = l.state();
        const auto& format = store_->format();
        const std::uint32_t row = s.stored % format.rows;
        if (s.stream_tail == none) {
            const std::uint32_t i = s.stored / format.rows;
            if (s.stored >= l.sizes().chain_entries || !store_->extend_stream(l, i)) return false;
            const std::uint32_t f = store_->acquire(frames);
            if (f == none) return false;
            frames[f].page = store_->stream_page(l, i);
            frames[f].lane = lane_id;
            s.stream_tail = f;
        }
        const std::uint32_t f = s.stream_tail;
        store_->make_tail(frames, f);
        format.put(frames.bytes(f), row, e.record);
        e.stream = s.stored++;
        if (row + 1 == format.rows) {
            format.pad(frames.bytes(f), format.rows);
            s.stream_tail = none;
            store_->seal(frames, f);
        }
        return true;
    }

    /// Moves a resident unit of full pages to a longer run.
    bool relocate(std::uint32_t lane_id, std::uint32_t u, std::uint32_t pages) noexcept {
        {
            const lane l = store_->at(lane_id);
            pool& frames = store_->pool_of(lane_id);
            unit_record& unit = l.unit(u);
            const auto& now = l.residency(u);
            if (now.frames == none || !store_->settle_writes(lane_id, u, frames)) return false;
            place where;
            if (!store_->layout().place_unit(pages, where)) return false;
            if (store_->layout().capacity(where) < pages) {
                store_->layout().release(where);
                return false;
            }
            store_->layout().release(unit.where);
            unit.where = where;
            std::uint32_t i = 0;
            for (std::uint32_t f = now.frames; f != none; f = frames[f].next) {
                frames[f].page = store_->layout().page(where, i++);
                store_->queue_write(frames, f);
            }
            store_->stats().bytes_moved_by_updates += store_->bytes_of(l, u);
            return true;
        }
    }

    /// Unpins the frame that headed a unit's chain when it was pinned; the chain may be gone by now.
    static void release_pin(pool& frames, std::uint32_t head) noexcept {
        if (frames[head].pins > 0) --frames[head].pins;
    }

  protected:
    store* store_ = nullptr;
    const summaries<Types>* sums_ = nullptr;
};

}} // namespace kvtl::v0
