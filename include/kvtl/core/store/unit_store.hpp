// Units that have pages of their own: how they come in and are written, and the tables that they take.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/page_store.hpp>
#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

template <class Types> class unit_store : public page_store<Types> {
    using base = page_store<Types>;
    using base::p_;

  public:
    using element_type = typename Types::element_type;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using residency = unit_residency;
    using parts = typename base::parts;
    using base::acquire, base::at, base::evict, base::evict_all, base::flush_writes, base::give_back,
        base::has_failed_writes, base::io_batch_of, base::note_resident, base::pool_of, base::queue_write,
        base::settle_all_writes, base::unsettled_frame, base::write_error;
    static constexpr bool ragged = base::ragged;

    unit_store() = default;
    explicit unit_store(const parts& p) noexcept : base(p) {}

    /// Whether a unit that is not resident may come in, and nobody has to leave for it.
    [[nodiscard]] bool has_room(const lane& l, std::uint32_t u, const pool& frames) const noexcept {
        return frames.free() >= pages_of(l, u);
    }
    /// Pages that a unit's entries fill, and bytes of their records.
    [[nodiscard]] std::uint32_t pages_of(const lane& l, std::uint32_t u) const noexcept {
        return ragged ? l.extent(u).pages : p_.format.pages_for(l.unit(u).entries);
    }
    [[nodiscard]] std::size_t bytes_of(const lane& l, std::uint32_t u) const noexcept {
        return ragged ? l.extent(u).bytes : p_.format.bytes_of(l.unit(u).entries);
    }
    /// Whether a unit's last page has room for one more entry, of these sizes.
    [[nodiscard]] bool last_page_takes(const lane& l, std::uint32_t u, record_bytes b) const noexcept {
        return ragged ? page_format::fits(l.extent(u).room, b) : l.unit(u).entries % p_.format.rows != 0;
    }
    /// Puts an entry into the page that is the unit's last; `fresh`: it is the page's first. Pages of a unit
    /// change nowhere else.
    void put(const lane& l, std::uint32_t u, std::byte* page, const entry_record& e,
             bool fresh) const noexcept {
        const std::uint32_t pages = pages_of(l, u);
        l.unit(u).change(fresh ? pages : pages - 1);
        if (fresh) p_.format.begin(page);
        p_.format.put(page, p_.format.next_row(page, l.unit(u).entries), e);
        if (ragged) {
            unit_extent& x = l.extent(u);
            x = {x.pages + (fresh ? 1 : 0), p_.format.room(page), x.bytes + e.bytes.entry()};
        }
    }

    /// How a unit's entries lie in its frames, and whose frames carry its writes.
    [[nodiscard]] const page_format& unit_format() const noexcept { return p_.format; }
    [[nodiscard]] pool& write_pool(std::uint32_t lane_id) const noexcept { return pool_of(lane_id); }
    [[nodiscard]] static std::uint32_t entries_of(const lane& l, std::uint32_t u) noexcept {
        return l.unit(u).entries;
    }
    /// Entries for which the pages have room that must be read to attend a unit; 0 if it is resident. A prefetch changes
    /// nothing of it: a unit that is on its way is not resident.
    [[nodiscard]] std::uint32_t fetched_entries(std::uint32_t lane_id, std::uint32_t u) const noexcept {
        const lane l = at(lane_id);
        const residency& now = l.residency(u);
        if (now.frames() != none && io_batch_of(now, pool_of(lane_id)) == none) return 0;
        return (pages_of(l, u) - (tail_of(now, pool_of(lane_id)) != none ? 1 : 0)) * p_.format.rows;
    }
    // ---------------------------------------------------------------------------------------------------
    // residency
    /// The frame of a unit's last page while it has entries that storage has not, or none.
    [[nodiscard]] static std::uint32_t tail_of(const residency& now, const pool& frames) noexcept {
        if (now.frames() == none) return now.lone_tail();
        const std::uint32_t last = last_of(now, frames);
        return frames[last].dirty ? last : none;
    }
    /// The last frame of a resident unit's chain.
    [[nodiscard]] static std::uint32_t last_of(const residency& now, const pool& frames) noexcept {
        std::uint32_t last = now.frames();
        while (frames[last].next != none) last = frames[last].next;
        return last;
    }
    /// Appends frame f to a unit's chain.
    void link(residency& now, pool& frames, std::uint32_t f) noexcept {
        frames[f].next = none;
        frames.link(f);
        if (now.frames() == none)
            now.set_frames(f);
        else
            frames[last_of(now, frames)].next = f;
    }

    // ------------------------------------------------------------------------------------------------------
    // all pages of a lane, to save or to load it. No write is in the air
    /// visit(stored_page) in the order of units.
    template <class Visit> void each_page(std::uint32_t lane_id, Visit&& visit) const noexcept {
        const lane l = at(lane_id);
        pool& frames = pool_of(lane_id);
        constexpr std::uint32_t ahead = 8; // records of frames are scattered
        for (std::uint32_t u = 0, units = l.state().units; u < units; ++u) {
            const residency& now = l.residency(u);
            if (u + ahead < units)
                if (const std::uint32_t f = l.residency(u + ahead).frames(); f != none)
                    simd::prefetch(&frames[f]);
            // What a prefetch reads may not have landed.
            const bool landed = io_batch_of(now, frames) == none;
            const std::uint32_t tail = tail_of(now, frames), pages = pages_of(l, u);
            std::uint32_t f = now.frames();
            for (std::uint32_t i = 0; i < pages; ++i) {
                stored_page p{p_.layout->page(l.unit(u).where, i)};
                p.unchanged = !l.unit(u).has_changed(i);
                p.ends = i + 1 == pages;
                if (i + 1 == pages && tail != none) {
                    p.bytes = frames.bytes(tail);
                    p.open_rows = l.unit(u).entries % p_.format.rows;
                } else if (f != none && landed) {
                    p.bytes = frames.bytes(f);
                }
                if (f != none) f = frames[f].next;
                visit(p);
            }
        }
    }
    void pad(const stored_page& p, std::byte* bytes) const noexcept { p_.format.pad(bytes, p.open_rows); }
    /// A save has all pages of a lane as they are now.
    void note_saved(std::uint32_t lane_id) const noexcept {
        for (unit_record& unit : at(lane_id).units()) unit.as_saved = unit_record::all_pages;
    }
    /// Of a lane that was loaded: every entry is somewhere, once, and what counts the same agrees.
    [[nodiscard, gnu::cold]] static bool holds_together(const lane& l) noexcept {
        const lane_state& s = l.state();
        std::uint64_t entries = 0, waiting = 0;
        std::vector<std::uint32_t> buffered(s.units);
        for (std::uint32_t i = 0; i < s.buffered; ++i)
            if (l.buffer_unit(i) >= s.units || ++buffered[l.buffer_unit(i)] == 0) return false;
        for (std::uint32_t u = 0; u < s.units; ++u) {
            entries += l.unit(u).entries;
            waiting += l.unit(u).buffered;
            if (l.unit(u).buffered != buffered[u]) return false;
            if (ragged && l.extent(u).pages > l.unit(u).entries) return false;
        }
        return waiting == s.buffered && entries + s.buffered + s.sinks == s.window_begin;
    }
    /// No keys live in memory.
    [[nodiscard]] static std::size_t key_bytes(const lane_state&) noexcept { return 0; }
    /// Gives the units of a lane, of which only the records are there, places on storage, each with room for `capacity[u]`
    /// pages. False when it is full: some have none then.
    [[nodiscard]] bool place_pages(std::uint32_t lane_id, std::span<const std::uint32_t> capacity) noexcept {
        const lane l = at(lane_id);
        for (std::uint32_t u = 0; u < l.state().units; ++u)
            if (!place_unit(lane_id, std::max({1U, pages_of(l, u), capacity[u]}), l.unit(u).where))
                return false;
        return true;
    }

    // ------------------------------------------------------------------------------------------------------
    // places. How far a sequence may grow depends on its own places, those that it shares with branches included
    /// Whether decode may add a unit to the lane: its tables have a row for it, and its sequence may have one more
    /// place. Storage may refuse it all the same while it holds chunks of other prompts.
    [[nodiscard]] bool may_grow(std::uint32_t lane_id) const noexcept {
        return may_add_unit(lane_id) && p_.lanes->region_of(lane_id).placed <= p_.grow_pages;
    }
    /// A place for a unit of the lane that has `pages` pages now; its capacity may be less. False where storage has none.
    [[nodiscard]] bool place_unit(std::uint32_t lane_id, std::uint32_t pages, place& where) noexcept {
        if (!p_.layout->place_unit(pages, where)) return false;
        p_.lanes->region_of(lane_id).placed += p_.layout->capacity(where);
        return true;
    }
    /// Places of a prompt's units, for all or for none.
    [[nodiscard]] bool arrange(std::uint32_t lane_id, const arrangement& a) noexcept {
        if (!p_.layout->arrange(a)) return false;
        for (const unit_record& unit : a.unit)
            p_.lanes->region_of(lane_id).placed += p_.layout->capacity(unit.where);
        return true;
    }
    /// A unit of the lane gives its place up, which goes back with its last owner.
    void release_place(std::uint32_t lane_id, place where) noexcept {
        p_.lanes->region_of(lane_id).placed -= p_.layout->capacity(where);
        if (!base::leave(p_.layout->page(where, 0))) p_.layout->release(where);
    }

    // ------------------------------------------------------------------------------------------------------
    // branches: lanes whose units have places in common
    /// Whether the unit's place has other owners. `shared` ends where it has none any more.
    [[nodiscard]] bool shares_place(unit_record& unit) const noexcept {
        unit.shared = unit.shared && base::has_other_owners(p_.layout->page(unit.where, 0));
        return unit.shared;
    }
    /// Sees to it that copy_lane() finds what it needs later, whatever happens until then: a lane of the sequence of lane `to` can
    /// get tables as long as those of lane `from`. Where frames have borrowed the memory for that, all that is resident leaves
    /// (extend_tables()), and open pages are written: the part of fork() that may take time, for each layer that has more units
    /// than those before.
    template <class Leave>
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t to, Leave&& leave) noexcept {
        auto& region = p_.lanes->region_of(to);
        const std::uint32_t units = at(from).state().units;
        if (region.lent_page == 0 || units <= region.promised) return {};
        pool& frames = pool_of(to);
        const std::size_t before = region.spare();
        if (!frames.may_keep_borrowed(before, region.spare(p_.lanes->sizes, units))) {
            leave();
            if (status s = vacate(frames); !s) return s;
        }
        region.promise(p_.lanes->sizes, units);
        frames.spare_changed(before, region.spare());
        frames.borrow();
        return {};
    }
    /// Nothing more is kept for the sequence of lane `to`.
    void withdraw_copies(std::uint32_t to) noexcept {
        auto& region = p_.lanes->region_of(to);
        const std::size_t before = region.spare();
        region.promise(p_.lanes->sizes, 0);
        pool_of(to).spare_changed(before, region.spare());
    }
    static void withdraw_copy(std::uint32_t, std::uint32_t) noexcept {}
    /// Writes the unfinished pages of a layer where they belong. No unit of its lanes, of which `lane_id` is one, has an open page
    /// then.
    void put_away_tails(std::uint32_t lane_id) noexcept {
        pool& frames = pool_of(lane_id);
        for (std::uint32_t t = frames.tail_count(); t-- > 0;) { // the last one moves up to where one goes
            const std::uint32_t f = frames.tails()[t].frame;
            if (frames[f].lane / p_.lanes->lanes_per_layer == lane_id / p_.lanes->lanes_per_layer)
                write_tail(frames, f);
        }
    }
    /// Lane `to`, which is empty, becomes what lane `from` is, and its units get the same places. None of these has an open page
    /// or a write in the air. Cannot fail where no page may get too many owners.
    [[nodiscard]] status copy_lane(std::uint32_t from, std::uint32_t to) noexcept {
        auto& region = p_.lanes->region_of(to);
        if (const std::uint32_t rows = std::max(region.promised, at(from).state().units);
            rows > region.at.rows)
            resize_tables(to, rows);
        at(to).copy_parts(at(from), 0);
        const lane parent = at(from), branch = at(to);
        for (std::uint32_t u = 0; u < branch.state().units; ++u) {
            unit_record &theirs = parent.unit(u), &ours = branch.unit(u);
            assert(tail_of(parent.residency(u), pool_of(from)) == none);
            if (status s = base::join(p_.layout->page(theirs.where, 0)); !s) return s;
            region.placed += p_.layout->capacity(ours.where = theirs.where);
            ours.shared = theirs.shared = true;
        }
        return {};
    }

    // ------------------------------------------------------------------------------------------------------
    // borrowed frames: what lies behind the tables of a sequence's lanes is lent (lane_table.hpp)
    /// Whether the lane's tables have a row for one more unit.
    [[nodiscard]] bool may_add_unit(std::uint32_t lane_id) const noexcept {
        const lane l = at(lane_id);
        return l.state().units < l.table_rows();
    }
    /// What the tables of this lane's sequence do not reach may be borrowed from now on.
    void offer_tables(std::uint32_t lane_id) noexcept {
        pool_of(lane_id).spare_changed(0, p_.lanes->region_of(lane_id).spare());
    }
    /// A prompt of the lane's sequence may need so many rows, and nothing is borrowed (vacate() has seen to that).
    void make_room_for_prompt(std::uint32_t lane_id, std::uint32_t rows) noexcept {
        const auto& region = p_.lanes->region_of(lane_id);
        rows = std::min(rows, p_.lanes->sizes.max_units);
        if (rows > region.at.rows) resize_tables(lane_id, rows);
    }
    /// Sees to it that some lanes of a sequence, of up to `units` units, can have `more`: if they cannot, all lanes of the
    /// sequence get tables for as many and an eighth. Where frames have borrowed the memory for that, all that is resident
    /// leaves: leave() comes before, behind it nothing may be pinned, and other sequences that share the frames get their
    /// eighth on the occasion. Tables stay as they are where nothing can leave.
    template <class Leave>
    void extend_tables(std::uint32_t lane_id, std::uint32_t units, std::uint32_t more,
                       Leave&& leave) noexcept {
        const auto& region = p_.lanes->region_of(lane_id);
        const lane_sizes& sizes = p_.lanes->sizes;
        if (std::min(units + more, sizes.max_units) <= region.at.rows) return;
        const std::uint32_t rows = rows_for(region, more);
        pool& frames = pool_of(lane_id);
        const bool alone = frames.may_keep_borrowed(region.spare(), region.spare(sizes, rows));
        if (!alone) {
            leave();
            if (!vacate(frames).ok()) return;
        }
        resize_tables(lane_id, rows);
        if (alone) return;
        const std::span regions = p_.lanes->regions;
        const std::size_t shards = std::size_t{p_.slots_apart} * regions.size() / p_.lanes->slots();
        for (std::size_t i = static_cast<std::size_t>(&region - regions.data()) % shards; i < regions.size();
             i += shards) {
            const auto& other = regions[i];
            if (other.at.rows == 0 || &pool_of(other.lanes[0]) != &frames) continue;
            const std::uint32_t of_token = std::min(more, sizes.buffer + sizes.spare + 1);
            if (const std::uint32_t enough = rows_for(other, of_token); enough > other.at.rows)
                resize_tables(other.lanes[0], enough);
        }
    }
    /// Tables that have become longer since the last time become as short as would do for `more` units.
    void trim_tables(std::uint32_t lane_id, std::uint32_t more) noexcept {
        auto& region = p_.lanes->region_of(lane_id);
        if (!region.roomy) return;
        if (const std::uint32_t rows = rows_for(region, more); rows < region.at.rows)
            resize_tables(lane_id, rows);
        region.roomy = false;
    }
    /// The lanes of this sequence have no unit any more.
    void empty_tables(std::uint32_t lane_id) noexcept {
        assert(p_.lanes->region_of(lane_id).placed == 0);
        resize_tables(lane_id, 0);
    }

    // ------------------------------------------------------------------------------------------------------
    // reading
    /// Plans the reads that make a unit resident: takes frames, links and pins them, and adds the pages to
    /// io_batch `id`. False (and nothing changed) when frames or room in the io_batch run out.
    [[nodiscard]] bool plan_load(std::uint32_t lane_id, std::uint32_t u, std::uint32_t id,
                                 std::uint32_t item) noexcept {
        pool& frames = pool_of(lane_id);
        const lane l = at(lane_id);
        const unit_record& unit = l.unit(u);
        residency& now = l.residency(u);
        io_batch& f = p_.io->at(id);
        const std::uint32_t tail = now.lone_tail(), pages = pages_of(l, u) - (tail != none ? 1 : 0);
        if (!f.room(pages)) return false;
        const auto before = static_cast<std::uint32_t>(f.pages().size());
        std::uint32_t chain = none, last = none, reads = 0;
        for (std::uint32_t i = 0; i < pages; ++i) {
            const std::uint32_t page = p_.layout->page(unit.where, i);
            std::uint32_t frame = unsettled_frame(frames, page); // still being written: DRAM has it
            if (frame == none) {
                frame = acquire(frames, lane_id);
                if (frame == none) {
                    f.truncate(before);
                    give_back(frames, chain);
                    return false;
                }
                frame_record& record = frames[frame];
                record.page = page, record.lane = lane_id, record.unit = u;
                f.add(page, frame, item);
                ++reads;
            }
            frames[frame].next = none;
            frames.link(frame);
            if (chain == none)
                chain = frame;
            else
                frames[last].next = frame;
            last = frame;
        }
        now.set_frames(chain);
        if (tail != none) link(now, frames, tail);
        if (item != none) f.items()[item].pending += reads;
        note_resident(l, u, frames, false);
        return true;
    }

    /// A unit lies in the frames that its pages were read into: nothing is copied, and no other frame carried it.
    static void finish_load(const lane&, std::uint32_t, std::uint32_t, pool&) noexcept {}
    static void release_carriers(std::uint32_t, pool&) noexcept {}

    // ------------------------------------------------------------------------------------------------------
    // writing
    /// Waits until a frame's bytes may change. False when its write failed.
    [[nodiscard]] bool writable(pool& frames, std::uint32_t f) noexcept {
        while (frames[f].writing) {
            flush_writes();
            p_.io->poll(true);
        }
        return !frames[f].failed;
    }
    /// Waits for all writes of a unit's pages. False when one failed.
    [[nodiscard]] bool settle_writes(std::uint32_t lane_id, std::uint32_t u, pool& frames) noexcept {
        bool again = true, ok = true;
        while (again) {
            again = false;
            for (const std::uint32_t f : frames.unsettled())
                if (frames[f].lane == lane_id && frames[f].unit == u) {
                    if (frames[f].failed)
                        ok = false;
                    else
                        again = true;
                }
            if (again) {
                flush_writes();
                p_.io->poll(true);
            }
        }
        return ok;
    }
    /// Makes a frame a tail (it holds entries that storage has not). The oldest tail is written to make room.
    void make_tail(pool& frames, std::uint32_t f) noexcept {
        if (!frames[f].dirty && frames.tail_count() >= frames.tail_quota())
            if (const std::uint32_t oldest = frames.oldest_tail(f); oldest != none) {
                write_tail(frames, oldest);
                ++p_.stats->tail_rewrites;
            }
        frames.mark_dirty(f);
    }
    /// Writes an unfinished page where it belongs; the unit goes on without a tail.
    void write_tail(pool& frames, std::uint32_t f) noexcept {
        const lane l = at(frames[f].lane);
        const std::uint32_t u = frames[f].unit;
        p_.format.pad(frames.bytes(f), l.unit(u).entries % p_.format.rows);
        if (residency& now = l.residency(u); now.lone_tail() == f) now.clear();
        start_tail_write(frames, f);
    }
    /// A tail whose page is complete.
    void seal(pool& frames, std::uint32_t f) noexcept { start_tail_write(frames, f); }

    /// Drops every resident unit of a pool and writes its tails, so that the pool's memory can be used for
    /// something else. Fails when a write fails.
    [[nodiscard]] status vacate(pool& frames) noexcept {
        while (!frames.tails().empty()) write_tail(frames, frames.tails().back().frame);
        settle_all_writes(frames);
        if (has_failed_writes(frames)) return write_error(frames);
        evict_all(frames);
        frames.give_all_back(); // what uses this memory makes tables longer
        return {};
    }
    /// Gives back everything a lane holds; its block starts afresh. No write may be in the air.
    void forget_lane(std::uint32_t lane_id) noexcept {
        const lane l = at(lane_id);
        pool& frames = pool_of(lane_id);
        for (std::uint32_t u = 0; u < l.state().units; ++u) {
            const residency& now = l.residency(u);
            const std::uint32_t tail = tail_of(now, frames);
            if (tail != none) frames.clear_dirty(tail);
            if (now.frames() != none)
                evict(l, u, frames);
            else if (tail != none)
                frames.settle(tail);
            if (l.unit(u).where.first != none) release_place(lane_id, l.unit(u).where);
        }
        base::reset_lane(lane_id, frames);
    }

  private:
    void resize_tables(std::uint32_t lane_id, std::uint32_t rows) noexcept {
        auto& region = p_.lanes->region_of(lane_id);
        if (region.lent_page == 0) return;
        const std::size_t before = region.spare();
        region.roomy = rows > region.at.rows;
        region.resize(p_.lanes->sizes, p_.lanes->places, rows);
        pool_of(lane_id).spare_changed(before, region.spare());
    }
    /// Of tables in which each lane of a sequence can have `more` units, and an eighth.
    template <class Region>
    [[nodiscard]] std::uint32_t rows_for(const Region& region, std::uint32_t more) const noexcept {
        constexpr std::uint32_t some = 32; // short tables shall not grow all the time
        std::uint32_t units = region.promised;
        for (std::uint32_t i = 0; i < region.lanes.count(); ++i)
            units = std::max(units, at(region.lanes[i]).state().units);
        const std::uint32_t rows = units + more;
        return std::min(p_.lanes->sizes.max_units, rows + rows / 8 + some);
    }

    void start_tail_write(pool& frames, std::uint32_t f) noexcept {
        // `writing` before `dirty` ends: the frame must not look free in between.
        queue_write(frames, f);
        frames.clear_dirty(f);
    }
};

}} // namespace kvtl::v0
