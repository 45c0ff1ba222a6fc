// Groups between DRAM and storage, for one shard. A group is a run of G consecutive entries of a lane's
// stream (G = 1 for methods that choose single tokens), so it needs no table but its residency.
//
// Two pools: *slots* of one group each hold what is resident, *page frames* carry pages from and to storage.
// A group is copied out of the pages that landed into its slot, so cached groups take their own size and not
// a page each. With an index that rebuilds keys, storage holds values only (ShadowKV).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/page_store.hpp>
#include <kvtl/summaries.hpp>

namespace kvtl::inline v0 {

template <class Types> class group_store : public page_store<Types> {
    using base = page_store<Types>;
    using base::p_;

  public:
    using element_type = typename Types::element_type;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using base::at, base::flush_writes, base::has_failed_writes, base::pool_of, base::queue_write,
        base::release_stream, base::settle_all_writes, base::stream_page, base::unsettled_frame;
    static constexpr bool by_entry = true;
    static constexpr bool keys_on_storage = !requires { requires Types::index::rebuilds_keys; };

    struct parts : base::parts {
        page_format<element_type> slot;         ///< rows = G: how a group lies in its slot
        std::span<pool> page_pools;             ///< one for each pool of slots
        const summaries<Types>* sums = nullptr; ///< rebuilds keys that storage does not have
        std::uint32_t spare_pages = 1;          ///< page frames that reads leave to appends
    };

    group_store() = default;
    explicit group_store(const parts& p) noexcept
        : base(p), slot_(p.slot), page_pools_(p.page_pools), sums_(p.sums), spare_pages_(p.spare_pages) {}

    [[nodiscard]] const page_format<element_type>& unit_format() const noexcept { return slot_; }
    [[nodiscard]] std::uint32_t group() const noexcept { return slot_.rows; }
    [[nodiscard]] pool& pages_of(const pool& slots) const noexcept {
        return page_pools_[static_cast<std::size_t>(&slots - p_.pools.data())];
    }
    [[nodiscard]] pool& write_pool(std::uint32_t lane_id) const noexcept {
        return pages_of(pool_of(lane_id));
    }
    [[nodiscard]] std::span<pool> page_pools() const noexcept { return page_pools_; }

    [[nodiscard]] std::uint32_t entries_of(const group_record&) const noexcept { return group(); }
    /// The prefetch or selection that reads a group. A slot is not a page, so its record keeps this there.
    [[nodiscard]] static std::uint32_t flight_of(const group_record& unit, const pool& slots) noexcept {
        return unit.frames == none ? none : slots[unit.frames].page;
    }
    static void set_flight(const group_record& unit, pool& slots, std::uint32_t id) noexcept {
        if (unit.frames != none) slots[unit.frames].page = id;
    }

    // ---------------------------------------------------------------------------------------------------
    // residency
    /// A free slot; evicts a group if it must. `none` when everything is pinned.
    [[nodiscard]] std::uint32_t acquire(pool& slots) noexcept {
        if (const std::uint32_t f = slots.pop_free(); f != none) return f;
        const std::uint32_t victim =
            slots.replacement().victim([&slots](std::uint32_t h) { return slots[h].pins > 0; });
        if (victim == none) return none;
        evict(at(slots[victim].lane), slots[victim].unit, slots);
        return slots.pop_free();
    }
    void evict(const lane& l, std::uint32_t u, pool& slots) noexcept {
        group_record& unit = l.unit(u);
        slots.replacement().remove(unit.frames);
        slots.unlink(unit.frames);
        unit.frames = none;
    }
    /// Drops everything that is resident in a pool, so that its memory can be used for something else.
    void vacate(pool& slots) noexcept {
        for (std::uint32_t f = 0; f < slots.size(); ++f)
            if (slots[f].linked) evict(at(slots[f].lane), slots[f].unit, slots);
    }
    void touch(const group_record& unit, pool& slots) noexcept { slots.replacement().touch(unit.frames); }
    void pin(const group_record& unit, pool& slots) noexcept { ++slots[unit.frames].pins; }
    void unpin(const group_record& unit, pool& slots) noexcept { --slots[unit.frames].pins; }

    /// A page frame for an append; waits for writes when all others are busy. `none` when reads ahead or
    /// failed writes hold them all.
    [[nodiscard]] std::uint32_t acquire_page(pool& pages) noexcept {
        for (;;) {
            if (const std::uint32_t f = pages.pop_free(); f != none) return f;
            if (pages.draining() == 0) return none;
            flush_writes();
            p_.io->poll(true);
        }
    }

    /// A page frame for a read. Reads leave the last ones to appends, but wait for those that are being
    /// written.
    [[nodiscard]] std::uint32_t acquire_carrier(pool& pages) noexcept {
        while (pages.free() <= spare_pages_) {
            if (pages.draining() == 0) return none;
            flush_writes();
            p_.io->poll(true);
        }
        return pages.pop_free();
    }

    // ------------------------------------------------------------------------------------------------------
    // reading
    /// Plans the reads that make a group resident. False (and nothing changed) when slots, page frames or
    /// room in the flight run out.
    [[nodiscard]] bool plan_load(std::uint32_t lane_id, std::uint32_t u, std::uint32_t id,
                                 std::uint32_t item) noexcept {
        pool& slots = pool_of(lane_id);
        pool& pages = pages_of(slots);
        const lane l = at(lane_id);
        flight& f = p_.io->at(id);
        const std::uint32_t rows = p_.format.rows, first = u * group() / rows,
                            last = ((u + 1) * group() - 1) / rows;
        if (!f.room(last - first + 1)) return false;
        const std::uint32_t slot = acquire(slots);
        if (slot == none) return false;
        slots[slot].lane = lane_id, slots[slot].unit = u;
        slots.link(slot);
        const auto before = static_cast<std::uint32_t>(f.pages().size());
        for (std::uint32_t i = first; i <= last; ++i) {
            if (is_tail(l, i)) continue; // DRAM has it
            const std::uint32_t page = stream_page(l, i);
            if (p_.bounce[page] == none) {
                std::uint32_t frame = unsettled_frame(pages, page); // still being written: copied from there
                const bool lent = frame != none;
                if (!lent) frame = acquire_carrier(pages);
                if (frame == none) {
                    drop_pages(f, before, pages);
                    slots.unlink(slot);
                    return false;
                }
                pages[frame].page = page;
                pages[frame].lent = lent;
                pages.link(frame); // held by the flight
                p_.bounce[page] = frame;
                if (lent) f.add(page, frame, none, true);
            } // else another group of this flight needs it too
            if (pages[p_.bounce[page]].lent) continue;
            f.add(page, p_.bounce[page], item);
            if (item != none) ++f.items()[item].pending;
        }
        l.unit(u).frames = slot;
        slots.replacement().admit(slot, {1, false, lane_id, u});
        return true;
    }

    /// Copies a group's rows out of the pages that have landed.
    void finish_load(const lane& l, std::uint32_t u, pool& slots) noexcept {
        pool& pages = pages_of(slots);
        std::byte* to = slots.bytes(l.unit(u).frames);
        const std::uint32_t rows = p_.format.rows;
        for (std::uint32_t row = 0; row < group();) {
            const std::uint32_t e = u * group() + row, n = std::min(group() - row, rows - e % rows);
            std::byte* from = pages.bytes(is_tail(l, e / rows) ? l.state().stream_tail
                                                               : p_.bounce[stream_page(l, e / rows)]);
            if constexpr (keys_on_storage)
                std::memcpy(slot_.key(to, row), p_.format.key(from, e % rows), n * slot_.row_bytes());
            std::memcpy(slot_.value(to, row), p_.format.value(from, e % rows), n * slot_.row_bytes());
            row += n;
        }
        if constexpr (!keys_on_storage) sums_->rebuild(slots[l.unit(u).frames].lane, u, slot_.key(to, 0));
    }

    /// Gives back the frames that carried pages of flight `id`.
    void release_bounces(std::uint32_t id, pool& slots) noexcept {
        pool& pages = pages_of(slots);
        for (const page_transfer& t : p_.io->at(id).pages())
            if (p_.bounce[t.page] != none) pages.unlink(std::exchange(p_.bounce[t.page], none));
    }
    [[nodiscard]] status submit_reads(std::uint32_t id, pool& slots) noexcept {
        return p_.io->submit_reads(id, pages_of(slots));
    }

    /// Calls visit(keys, values, rows) for everything that a lane has stored, page by page: (rows, width)
    /// each. For attention over everything, which needs no slots. Reads each page once, many at a time.
    template <class Visit> [[nodiscard]] status scan(std::uint32_t lane_id, Visit&& visit) noexcept {
        const lane l = at(lane_id);
        pool& pages = write_pool(lane_id);
        const std::uint32_t rows = p_.format.rows, full = l.state().stored / rows;
        flight& f = p_.io->at(0);
        for (std::uint32_t i = 0; i < full;) {
            f.clear();
            const std::uint32_t first = i;
            for (; i < full && f.room(1); ++i) {
                const std::uint32_t page = stream_page(l, i);
                std::uint32_t frame = unsettled_frame(pages, page);
                const bool lent = frame != none;
                if (!lent) frame = acquire_carrier(pages);
                if (frame == none) break;
                pages[frame].page = page;
                pages.link(frame);
                p_.bounce[page] = frame;
                f.add(page, frame, none, lent);
            }
            if (f.pages().empty())
                return status::failure(errc::bound_too_small,
                                       "memory_bytes: no page frame is free to read with");
            status done = p_.io->submit_reads(0, pages);
            p_.io->drain(0);
            if (done.ok()) done = f.error();
            for (std::uint32_t j = first; j < i; ++j) { // in stream order, whatever was read or still in DRAM
                const std::uint32_t frame = std::exchange(p_.bounce[stream_page(l, j)], none);
                std::byte* page = pages.bytes(frame);
                if (done.ok()) visit(p_.format.key(page, 0), p_.format.value(page, 0), rows);
                pages.unlink(frame);
            }
            if (!done.ok()) return done;
        }
        if (const std::uint32_t f_tail = l.state().stream_tail; f_tail != none)
            visit(p_.format.key(pages.bytes(f_tail), 0), p_.format.value(pages.bytes(f_tail), 0),
                  l.state().stored % rows);
        return {};
    }

    // ------------------------------------------------------------------------------------------------------
    // writing
    /// Puts row e of a lane's stream into the tail page, which is `frame` when the row begins a page.
    void put_row(std::uint32_t lane_id, std::uint32_t e, std::uint32_t frame, const element_type* k,
                 const element_type* v) noexcept {
        const lane l = at(lane_id);
        pool& pages = write_pool(lane_id);
        lane_state& s = l.state();
        const std::uint32_t row = e % p_.format.rows;
        if (row == 0) {
            pages[frame].page = stream_page(l, e / p_.format.rows);
            pages[frame].lane = lane_id;
            pages.mark_dirty(frame);
            s.stream_tail = frame;
        }
        std::byte* page = pages.bytes(s.stream_tail);
        if constexpr (keys_on_storage) std::memcpy(p_.format.key(page, row), k, p_.format.row_bytes());
        std::memcpy(p_.format.value(page, row), v, p_.format.row_bytes());
        s.stored = e + 1;
        if (row + 1 < p_.format.rows) return;
        p_.format.pad(page, p_.format.rows);
        const std::uint32_t full = std::exchange(s.stream_tail, none);
        queue_write(pages, full);
        pages.clear_dirty(full);
    }

    /// Gives back everything a lane holds; its block starts afresh. No write may be in the air.
    void forget_lane(std::uint32_t lane_id) noexcept {
        const lane l = at(lane_id);
        pool& slots = pool_of(lane_id);
        pool& pages = pages_of(slots);
        for (std::uint32_t u = 0; u < l.state().units; ++u)
            if (l.unit(u).frames != none) evict(l, u, slots);
        if (const std::uint32_t f = l.state().stream_tail; f != none) {
            pages.clear_dirty(f);
            pages.settle(f);
        }
        for (std::uint32_t f = 0; f < pages.size(); ++f)
            if (pages[f].failed && pages[f].lane == lane_id) pages.write_finished(f, true);
        release_stream(l);
        l.reset();
    }

  private:
    /// Page i of the stream is the unfinished one, which only DRAM has.
    [[nodiscard]] bool is_tail(const lane& l, std::uint32_t i) const noexcept {
        return l.state().stream_tail != none && i == l.state().stored / p_.format.rows;
    }

    /// Undoes the additions of a group that could not be planned completely.
    void drop_pages(flight& f, std::uint32_t before, pool& pages) noexcept {
        for (const page_transfer& t : f.pages().subspan(before)) {
            if (t.item != none) --f.items()[t.item].pending;
            if (p_.bounce[t.page] == t.frame && !f.holds_before(t.page, before)) {
                p_.bounce[t.page] = none;
                pages.unlink(t.frame);
            }
        }
        f.truncate(before);
    }

    page_format<element_type> slot_{};
    std::span<pool> page_pools_;
    const summaries<Types>* sums_ = nullptr;
    std::uint32_t spare_pages_ = 1;
};

} // namespace kvtl::inline v0
