// How units grow during decode: entries that leave the window are appended, split their unit, or wait in the
// buffer.
//
// The clusterer decides, this class carries out: pages, tails, relocation, splits, statistics. Every function
// either completes or changes nothing; an entry that cannot be placed for now stays in the window.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/kmeans.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/unit_store.hpp>

namespace kvtl::inline v0 {

template <class Types> class unit_growth {
  public:
    using element_type = typename Types::element_type;
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using clusterer = typename Types::clusterer;
    using clusterer_state = typename Types::clusterer_state;
    static constexpr bool by_entry = store::by_entry;

    struct scratch {
        std::span<float> key;            ///< (width)
        std::span<float> distance;       ///< (max_units)
        std::span<element_type> k, v;    ///< (split_rows, width)
        std::span<std::uint8_t> side;    ///< (split_rows)
        std::span<std::uint32_t> entry;  ///< (split_rows) entry-wise layouts: places in the stream
        std::span<std::byte> halve;      ///< halve_scratch_bytes(split_rows, width)
        std::span<std::uint32_t> frames; ///< (frames of both children)

        /// Rows of the largest split: a full unit, everything buffered and the new entry, but never more than
        /// two units.
        [[nodiscard]] static std::uint32_t rows(const lane_sizes& s, std::uint32_t max_entries) noexcept {
            return std::min(max_entries + s.buffer + 1, 2 * max_entries);
        }
        static scratch take(carver& c, const lane_sizes& s, std::uint32_t max_entries,
                            std::uint32_t page_rows) noexcept {
            const std::uint32_t n = rows(s, max_entries);
            scratch out;
            out.key = c.take<float>(s.width);
            out.distance = c.take<float>(s.max_units);
            out.k = c.take<element_type>(std::size_t{n} * s.width);
            out.v = c.take<element_type>(std::size_t{n} * s.width);
            out.side = c.take<std::uint8_t>(n);
            out.entry = c.take<std::uint32_t>(n);
            out.halve = c.take<std::byte>(clusterer::adapts ? halve_scratch_bytes(n, s.width) : 0);
            out.frames = c.take<std::uint32_t>(n / page_rows + 2);
            return out;
        }
    };

    unit_growth() = default;
    unit_growth(store& s, const clusterer_state& c, const scratch& x) noexcept
        : store_(&s), clusterer_(&c), x_(x) {}

    /// What the clusterer sees of a lane.
    [[nodiscard]] units_view view(const lane& l) const noexcept {
        const lane_state& s = l.state();
        return {s.units > 0 ? &l.unit(0) : nullptr,
                s.units,
                Types::means ? l.mean(0) : nullptr,
                l.sizes().width,
                l.sizes().width,
                clusterer_->max_entries(),
                s.tokens,
                s.units < l.sizes().max_units && store_->layout().may_place()};
    }

    /// The oldest entry of the window goes to a unit or to the buffer. False: not possible now (a write
    /// failed), the entry stays where it is.
    [[nodiscard]] bool place_oldest(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        const element_type* k = l.window_k(s.window_begin);
        const element_type* v = l.window_v(s.window_begin);
        if (s.buffered >= l.sizes().buffer) return false;
        if (!place_entry(lane_id, k, v)) return false;
        ++s.window_begin;
        return true;
    }

    /// Entries that wait for units that are resident now join them: a flagged unit splits with all of them
    /// (Algorithm 1), others take them one by one under the usual rule.
    void merge_buffered(std::uint32_t lane_id) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        for (std::uint32_t i = 0; i < l.state().buffered;) {
            const std::uint32_t u = l.buffer_unit(i);
            const unit_record& unit = l.unit(u);
            const std::uint32_t before = l.state().buffered;
            if (unit.frames != none) {
                store_->pin(unit, frames);
                const std::uint32_t pinned = unit.frames;
                merge_unit(lane_id, u);
                release_pin(frames, pinned);
            }
            i = l.state().buffered < before ? 0 : i + 1; // rows moved up: look again from the start
        }
    }

    /// The unit with the most waiting entries (ties: lowest index), or none.
    [[nodiscard]] std::uint32_t fullest_buffered(std::uint32_t lane_id) const noexcept {
        const lane l = store_->at(lane_id);
        std::uint32_t best = none;
        for (std::uint32_t i = 0; i < l.state().buffered; ++i) {
            const std::uint32_t u = l.buffer_unit(i);
            if (best == none || l.unit(u).buffered > l.unit(best).buffered ||
                (l.unit(u).buffered == l.unit(best).buffered && u < best))
                best = u;
        }
        return best;
    }

    /// Pages that placing one entry and merging `units` waiting units may take from the end of the file.
    [[nodiscard]] std::uint32_t worst_case_pages(std::uint32_t units) const noexcept {
        return (units + 1) * store_->layout().run_pages();
    }

  private:
    struct new_entry {
        const element_type* k;
        const element_type* v;
        std::uint32_t stream; ///< entry-wise layouts: its place in the lane's stream
    };

    bool place_entry(std::uint32_t lane_id, const element_type* k, const element_type* v) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const assignment a = assign(l, k);
        new_entry e{k, v, none};
        if constexpr (by_entry)
            if (!stream_append(lane_id, e)) return false;
        if (a.how == growth::open) {
            if (open_unit(lane_id, a.unit, e)) return true;
            if (l.state().units == 0) return false;
            l.push_buffer(a.unit != none ? a.unit : l.state().units - 1, k, v, e.stream);
            return true;
        }
        const unit_record& unit = l.unit(a.unit);
        if (a.how == growth::append) {
            if (unit.buffered == 0 && append(lane_id, a.unit, e)) return true;
        } else {
            if (unit.frames != none) {
                store_->pin(unit, frames);
                const std::uint32_t pinned = unit.frames;
                const bool done = split(lane_id, a.unit, &e);
                release_pin(frames, pinned);
                if (done) return true;
            }
            l.unit(a.unit).flagged = true;
        }
        l.push_buffer(a.unit, k, v, e.stream);
        return true;
    }

    [[nodiscard]] assignment assign(const lane& l, const element_type* k) noexcept {
        const units_view u = view(l);
        if constexpr (clusterer::founds) {
            if (!l.state().founded) { // too few entries to cluster: units are sequential
                if (u.count == 0) return {none, growth::open};
                const unit_record& last = u.unit[u.count - 1];
                if (last.entries + last.buffered < clusterer_->sequential_entries())
                    return {u.count - 1, growth::append};
                return {none, growth::open};
            }
        }
        simd::decode(k, x_.key.data(), l.sizes().width);
        return clusterer_->assign(l.clusterer(), x_.key.data(), u, x_.distance);
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
            const new_entry e{l.buffer_k(i), l.buffer_v(i), by_entry ? l.buffer_entry(i) : none};
            growth how = growth::append;
            if constexpr (clusterer::founds) {
                if (l.state().founded) {
                    simd::decode(e.k, x_.key.data(), l.sizes().width);
                    const float distance = simd::l2sq(x_.key.data(), l.mean(u), l.sizes().width);
                    how = clusterer_->judge(l.clusterer(), unit, distance, view(l));
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
        const assignment a = assign(l, l.buffer_k(i));
        const new_entry e{l.buffer_k(i), l.buffer_v(i), by_entry ? l.buffer_entry(i) : none};
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

    // -------------------------------------------------------------------------------------------------------
    // growing
    bool open_unit(std::uint32_t lane_id, std::uint32_t like, const new_entry& e) noexcept {
        const lane l = store_->at(lane_id);
        lane_state& s = l.state();
        if (s.units >= l.sizes().max_units) return false;
        unit_record fresh;
        if constexpr (!by_entry)
            if (!store_->layout().place_unit(1, fresh.where)) return false;
        const std::uint32_t u = s.units++;
        l.unit(u) = fresh;
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
        unit_record& unit = l.unit(u);
        const bool was_resident = unit.frames != none;
        const std::uint32_t pinned = unit.frames;
        if (was_resident) store_->pin(unit, frames);
        bool done = false;
        if constexpr (by_entry)
            done = append_member(l, u, e, frames);
        else
            done = append_row(lane_id, u, e, frames);
        if (was_resident) release_pin(frames, pinned);
        if (!done) return false;
        note_entry(l, u, e.k);
        if (unit.frames != none) store_->note_resident(l, u, frames, true);
        return true;
    }

    bool append_row(std::uint32_t lane_id, std::uint32_t u, const new_entry& e, pool& frames) noexcept {
        const lane l = store_->at(lane_id);
        unit_record& unit = l.unit(u);
        const auto& format = store_->format();
        const std::uint32_t page = unit.entries / format.rows, row = unit.entries % format.rows;
        std::uint32_t f = unit.tail;
        if (row == 0) {
            if (page + 1 > store_->layout().capacity(unit.where) && !relocate(lane_id, u, page + 1))
                return false;
            f = store_->acquire(frames);
            if (f == none) return false;
            frames[f].page = store_->layout().page(unit.where, page);
            frames[f].lane = lane_id;
            frames[f].unit = u;
            if (unit.entries == 0 || unit.frames != none) store_->link(unit, frames, f);
        } else if (f == none) {
            if (unit.frames == none) return false;
            f = unit.frames;
            while (frames[f].next != none) f = frames[f].next;
            if (!store_->writable(frames, f)) return false;
        }
        unit.tail = f;
        store_->make_tail(frames, f);
        format.put(frames.bytes(f), row, e.k, e.v);
        if (row + 1 == format.rows) {
            format.pad(frames.bytes(f), format.rows);
            unit.tail = none;
            store_->seal(frames, f);
        }
        return true;
    }

    bool append_member(const lane& l, std::uint32_t u, const new_entry& e, pool& frames) noexcept {
        unit_record& unit = l.unit(u);
        const auto& format = store_->format();
        if (unit.frames != none) { // keep the resident copy complete, or give it up
            std::uint32_t f = none;
            if (unit.entries % format.rows == 0) {
                f = store_->acquire(frames);
                if (f != none) {
                    frames[f].lane = frames[unit.frames].lane;
                    frames[f].unit = u;
                    store_->link(unit, frames, f);
                }
            } else {
                for (f = unit.frames; frames[f].next != none;) f = frames[f].next;
            }
            if (f != none)
                format.put(frames.bytes(f), unit.entries % format.rows, e.k, e.v);
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
    void note_entry(const lane& l, std::uint32_t u, const element_type* k) noexcept {
        unit_record& unit = l.unit(u);
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
        format.put(frames.bytes(f), row, e.k, e.v);
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
            if (unit.frames == none || !store_->settle_writes(lane_id, u, frames)) return false;
            place where;
            if (!store_->layout().place_unit(pages, where)) return false;
            if (store_->layout().capacity(where) < pages) {
                store_->layout().release(where);
                return false;
            }
            store_->layout().release(unit.where);
            unit.where = where;
            std::uint32_t i = 0;
            for (std::uint32_t f = unit.frames; f != none; f = frames[f].next) {
                frames[f].page = store_->layout().page(where, i++);
                store_->queue_write(frames, f);
            }
            store_->stats().bytes_moved_by_updates += unit.entries * store_->format().entry_bytes();
            return true;
        }
    }

    // ------------------------------------------------------------------------------------------------------
    // splitting
    /// Splits a resident unit together with everything buffered for it and the new entry, if any. The larger
    /// side stays in the unit (at its own head on storage), the smaller becomes a new unit.
    bool split(std::uint32_t lane_id, std::uint32_t u, const new_entry* extra) noexcept {
        if constexpr (!clusterer::adapts) {
            static_cast<void>(lane_id), static_cast<void>(u), static_cast<void>(extra);
            return false;
        } else {
            const lane l = store_->at(lane_id);
            pool& frames = store_->pool_of(lane_id);
            lane_state& s = l.state();
            const auto& format = store_->format();
            if (s.units >= l.sizes().max_units || !store_->settle_writes(lane_id, u, frames)) return refuse();
            const std::uint32_t old_entries = l.unit(u).entries;
            const std::uint32_t n = gather(l, u, frames, extra);
            const rows_view<element_type> keys{x_.k.data(), n, l.sizes().width, l.sizes().width};
            halve(keys, clusterer_->max_entries(), x_.halve, x_.side.data());
            std::uint32_t ones = 0;
            for (std::uint32_t i = 0; i < n; ++i) ones += x_.side[i];
            const std::uint8_t stays = ones * 2 > n ? 1 : 0;
            const std::uint32_t kept = stays == 1 ? ones : n - ones;

            unit_record child;
            const std::uint32_t kept_pages = format.pages_for(kept), child_pages = format.pages_for(n - kept);
            if constexpr (!by_entry)
                if (!store_->layout().place_unit(child_pages, child.where)) return refuse();
            std::uint32_t taken = 0;
            while (taken < kept_pages + child_pages) {
                const std::uint32_t f = store_->acquire(frames);
                if (f == none) break;
                x_.frames[taken++] = f;
            }
            if (taken < kept_pages + child_pages) {
                while (taken > 0) frames.settle(x_.frames[--taken]);
                if constexpr (!by_entry) store_->layout().release(child.where);
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
            if (parent.tail != none) {
                frames.clear_dirty(parent.tail);
                parent.tail = none;
            }
            store_->evict(l, u, frames);
            parent.flagged = parent.buffered > 0; // more were waiting than two units hold
            const std::uint32_t c = s.units++;
            l.unit(c) = child;
            fill(lane_id, u, stays, n, x_.frames.first(kept_pages));
            fill(lane_id, c, static_cast<std::uint8_t>(1 - stays), n,
                 x_.frames.subspan(kept_pages, child_pages));
            ++store_->stats().splits;
            if constexpr (!by_entry)
                store_->stats().bytes_moved_by_updates += old_entries * format.entry_bytes();
            return true;
        }
    }
    bool refuse() noexcept {
        ++store_->stats().refused_splits;
        return false;
    }

    /// Copies a unit's rows, its buffered ones and the new one to the split scratch, in order of arrival.
    std::uint32_t gather(const lane& l, std::uint32_t u, pool& frames, const new_entry* extra) noexcept {
        const auto& format = store_->format();
        const std::size_t row_bytes = format.row_bytes();
        std::uint32_t n = 0;
        const auto put = [&](const element_type* k, const element_type* v, std::uint32_t entry) {
            std::memcpy(&x_.k[std::size_t{n} * format.width], k, row_bytes);
            std::memcpy(&x_.v[std::size_t{n} * format.width], v, row_bytes);
            x_.entry[n++] = entry;
        };
        std::uint32_t f = l.unit(u).frames, member = l.unit(u).members;
        for (std::uint32_t i = 0; i < l.unit(u).entries; ++i) {
            put(format.key(frames.bytes(f), i % format.rows), format.value(frames.bytes(f), i % format.rows),
                member);
            if constexpr (by_entry) member = l.next_member(member);
            if ((i + 1) % format.rows == 0) f = frames[f].next;
        }
        const std::uint32_t most = 2 * clusterer_->max_entries() - (extra != nullptr ? 1 : 0);
        for (std::uint32_t i = 0; i < l.state().buffered && n < most; ++i)
            if (l.buffer_unit(i) == u) put(l.buffer_k(i), l.buffer_v(i), by_entry ? l.buffer_entry(i) : none);
        if (extra != nullptr) put(extra->k, extra->v, extra->stream);
        return n;
    }

    /// Makes unit u from the gathered rows of one side: frames, statistics, writes of its complete pages.
    void fill(std::uint32_t lane_id, std::uint32_t u, std::uint8_t side, std::uint32_t n,
              std::span<const std::uint32_t> with) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const auto& format = store_->format();
        unit_record& unit = l.unit(u);
        unit.entries = 0;
        unit.m2 = 0;
        unit.members = unit.last_member = none;
        for (std::uint32_t i = 0; i < n; ++i) {
            if (x_.side[i] != side) continue;
            const element_type* k = &x_.k[std::size_t{i} * format.width];
            const std::uint32_t f = with[unit.entries / format.rows];
            format.put(frames.bytes(f), unit.entries % format.rows, k, &x_.v[std::size_t{i} * format.width]);
            if constexpr (by_entry) {
                l.next_member(x_.entry[i]) = none;
                if (unit.members == none)
                    unit.members = x_.entry[i];
                else
                    l.next_member(unit.last_member) = x_.entry[i];
                unit.last_member = x_.entry[i];
            }
            note_entry(l, u, k);
        }
        for (std::uint32_t i = 0; i < with.size(); ++i) {
            frames[with[i]].lane = lane_id;
            frames[with[i]].unit = u;
            store_->link(unit, frames, with[i]);
            if constexpr (!by_entry) {
                frames[with[i]].page = store_->layout().page(unit.where, i);
                const std::uint32_t rows = std::min(format.rows, unit.entries - i * format.rows);
                if (rows == format.rows) {
                    format.pad(frames.bytes(with[i]), rows);
                    store_->queue_write(frames, with[i]);
                }
            }
        }
        if constexpr (!by_entry)
            if (unit.entries % format.rows != 0) {
                unit.tail = with.back();
                store_->make_tail(frames, unit.tail);
            }
        store_->note_resident(l, u, frames, true);
    }

    /// Unpins the frame that headed a unit's chain when it was pinned; the chain may be gone by now.
    static void release_pin(pool& frames, std::uint32_t head) noexcept {
        if (frames[head].pins > 0) --frames[head].pins;
    }

    store* store_ = nullptr;
    const clusterer_state* clusterer_ = nullptr;
    scratch x_{};
};

} // namespace kvtl::inline v0
