// Groups between DRAM and storage, for one shard. A group is a run of G consecutive entries of a lane's
// stream (G = 1 for methods that choose single tokens), so it needs no table but its residency.
//
// Two pools: *slots* of one group each hold what is resident, *page frames* carry pages from and to storage.
// A group is copied out of the pages that landed into its slot, so cached groups take their own size and not
// a page each. Groups of ragged records differ in size: their slot is a run of small frames. With a codec whose
// keys live in memory, storage holds values only (ShadowKV) and a slot has the keys as plain rows. With an
// index that scores stored keys, keys and values have pages of their own, so that scoring reads keys alone, in
// long runs:
//
//   stream  [ keys of pages 0 .. B-1 | their values | keys of pages B .. 2B-1 | their values | ... ]
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/page_store.hpp>
#include <kvtl/simd/attend.hpp>

#include <algorithm>
#include <utility>

namespace kvtl { inline namespace v0 {

template <class Types> class group_store : public page_store<Types> {
    using base = page_store<Types>;
    using base::p_;

  public:
    using element_type = typename Types::element_type;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using residency = unit_residency;
    using base::acquire_free, base::at, base::evict, base::give_back, base::io_batch_of, base::pool_of,
        base::queue_write, base::stream_page, base::unsettled_frame;
    static constexpr std::uint32_t fields = Types::fields;
    static constexpr bool ragged = base::ragged;
    /// B: with 4 KiB pages a run of keys is one request of 128 KiB, where devices reach their bandwidth. Gaps
    /// that are read through must be shorter, or scoring would read the values too.
    static constexpr std::uint32_t split_run = 32;
    static constexpr std::uint32_t granule = Types::compressor::granule;
    static_assert(simd::attend_block % granule == 0, "[kvtl] blocks of attention are whole granules");
    static constexpr auto decode_block = static_cast<std::uint32_t>(simd::attend_block);
    static constexpr bool keys_on_storage = !Types::values_only;

    struct parts : base::parts {
        page_format slot;              ///< rows = G: how a group lies in its slot
        std::span<pool> page_pools;    ///< one for each pool of slots
        std::uint32_t spare_pages = 1; ///< page frames that reads leave to appends
    };

    group_store() = default;
    explicit group_store(const parts& p) noexcept
        : base(p), slot_(p.slot), page_pools_(p.page_pools), spare_pages_(p.spare_pages) {}

    [[nodiscard]] const page_format& unit_format() const noexcept { return slot_; }
    [[nodiscard]] std::uint32_t group() const noexcept { return slot_.rows; }
    [[nodiscard]] pool& pages_of(const pool& slots) const noexcept {
        return page_pools_[static_cast<std::size_t>(&slots - p_.pools.data())];
    }
    [[nodiscard]] pool& write_pool(std::uint32_t lane_id) const noexcept {
        return pages_of(pool_of(lane_id));
    }
    [[nodiscard]] std::span<pool> page_pools() const noexcept { return page_pools_; }

    [[nodiscard]] std::uint32_t entries_of(const lane&, std::uint32_t) const noexcept { return group(); }
    /// Entries that must be read to attend a unit; 0 if it is resident.
    [[nodiscard]] std::uint32_t fetched_entries(std::uint32_t lane_id, std::uint32_t u) const noexcept {
        const residency& now = base::at(lane_id).residency(u);
        return now.frames() != none && io_batch_of(now, pool_of(lane_id)) == none ? 0 : group();
    }
    [[nodiscard]] std::size_t bytes_of(const lane& l, std::uint32_t u) const noexcept {
        return ragged ? l.extent(u).bytes : p_.format.bytes_of(group());
    }
    /// Frames that a group takes: one slot, or as many as hold its records.
    [[nodiscard]] std::uint32_t frames_of(const lane& l, std::uint32_t u) const noexcept {
        if (!ragged) return 1;
        const std::uint32_t frame = p_.pools[0].frame_bytes();
        return (page_format::ragged_bytes(group(), l.extent(u).bytes) + frame - 1) / frame;
    }
    /// Whether a group that is not resident may come in, and nobody has to leave for it.
    [[nodiscard]] bool has_room(const lane& l, std::uint32_t u, const pool& slots) const noexcept {
        return ragged ? slots.has_run(frames_of(l, u)) : slots.free() > 0;
    }
    // ------------------------------------------------------------------------------------------------------
    // reading
    /// Plans the reads that make a group resident. False, and nothing planned, when slots, page frames or
    /// room in the io_batch run out; groups may have left for it by then.
    [[nodiscard]] bool plan_load(std::uint32_t lane_id, std::uint32_t u, std::uint32_t id,
                                 std::uint32_t item) noexcept {
        pool& slots = pool_of(lane_id);
        pool& pages = pages_of(slots);
        const lane l = at(lane_id);
        io_batch& f = p_.io->at(id);
        const std::uint32_t first = find(l, u * group()).page, last = find(l, (u + 1) * group() - 1).page;
        if (!f.room(fields * (last - first + 1))) return false;
        const std::uint32_t slot = take_slot(lane_id, u, slots);
        if (slot == none) return false;
        slots[slot].lane = lane_id, slots[slot].unit = u;
        const auto before = static_cast<std::uint32_t>(f.pages().size());
        for (std::uint32_t i = first; i <= last; ++i) {
            if (is_tail(l, i)) continue; // DRAM has it
            for (std::uint32_t field = 0; field < fields; ++field) {
                if (carry(f, page_of(l, i, field), item, pages)) continue;
                drop_pages(f, before, pages);
                give_back(slots, slot);
                return false;
            }
        }
        l.residency(u).set_frames(slot);
        base::note_resident(l, u, slots, false);
        return true;
    }

    /// Copies a group's rows out of the pages that have landed with io_batch `id`.
    void finish_load(const lane& l, std::uint32_t u, std::uint32_t id, pool& slots) noexcept {
        const carried_pages pages{pages_of(slots), p_.io->at(id).carriers()};
        std::byte* to = slots.bytes(l.residency(u).frames());
        if (ragged) {
            const page_format run = slot_.shortened(slots[l.residency(u).frames()].run * slots.frame_bytes());
            run.begin(to);
            for (std::uint32_t row = 0; row < group(); ++row) {
                const position from = find(l, u * group() + row);
                run.put(to, row, p_.format.entry(landed(l, pages, from.page, 0), from.row));
            }
            return;
        }
        const std::uint32_t rows = p_.format.rows;
        for (std::uint32_t row = 0; row < group();) {
            const std::uint32_t e = u * group() + row, n = std::min(group() - row, rows - e % rows);
            // copy_n calls memmove; of memcpy gcc makes `rep movsb` here, which begins slowly.
            if (keys_on_storage)
                std::copy_n(p_.format.key(landed(l, pages, e / rows, 0), e % rows),
                            slot_.records_of(n) * slot_.record.key, slot_.key(to, row));
            std::copy_n(p_.format.value(landed(l, pages, e / rows, fields - 1), e % rows),
                        slot_.records_of(n) * slot_.record.value, slot_.value(to, row));
            row += n;
        }
        if constexpr (!keys_on_storage) {
            decltype(auto) codec = base::codec(slots[l.residency(u).frames()].lane);
            auto* plain = reinterpret_cast<element_type*>(to);
            for (std::uint32_t first = 0; first < group(); first += decode_block) {
                const std::uint32_t n = std::min(group() - first, decode_block);
                codec.decode_keys(stored_keys(l, u * group() + first, n),
                                  plain + std::size_t{first} * l.sizes().width);
            }
        }
    }
    /// Where the records of keys live in memory: those of entries [first, first + count) of a lane's stream.
    [[nodiscard]] records_view stored_keys(const lane& l, std::uint32_t first,
                                           std::uint32_t count) const noexcept {
        const std::uint32_t bytes = l.sizes().record.key;
        return {l.key_records() + std::size_t{first} / granule * bytes, count, bytes, nullptr, granule};
    }

    /// Gives back the frames that carried pages of io_batch `id`.
    void release_carriers(std::uint32_t id, pool& slots) noexcept {
        release_carriers(p_.io->at(id), pages_of(slots));
    }

    /// Calls visit(keys, values) for everything that a lane has stored, page by page, as records. For
    /// attention over everything, which needs no slots. Reads each page once, many at a time.
    template <class Visit> [[nodiscard]] status scan(std::uint32_t lane_id, Visit&& visit) noexcept {
        return scan_fields<fields>(lane_id, visit);
    }
    /// Calls visit(keys) alike, and reads no values. Uses even the page frames that reads leave to appends, as it gives
    /// them back at once: reads ahead cannot starve it. Keys in memory come at once.
    template <class Visit> [[nodiscard]] status scan_keys(std::uint32_t lane_id, Visit&& visit) noexcept {
        if constexpr (keys_on_storage) {
            static_assert(fields == 2);
            return scan_fields<1>(lane_id,
                                  [&visit](const records_view& keys, const records_view&) { visit(keys); });
        } else {
            const lane l = at(lane_id);
            if (l.state().stored > 0) visit(stored_keys(l, 0, l.state().stored));
            return {};
        }
    }

    // ------------------------------------------------------------------------------------------------------
    // writing
    /// Puts entry e of a lane's stream, or the granule that begins with it, into its tail pages. When it begins
    /// a page, they are the first of the chain `frames`.
    void put_entry(std::uint32_t lane_id, std::uint32_t e, std::uint32_t& frames,
                   const entry_record& record) noexcept {
        const lane l = at(lane_id);
        pool& pages = write_pool(lane_id);
        lane_state& s = l.state();
        if (ragged && s.stream_tail != none && !p_.format.takes(pages.bytes(s.stream_tail), 0, record.bytes))
            seal_tails(s, pages);
        const bool fresh = s.stream_tail == none;
        for (std::uint32_t field = 0; fresh && field < fields; ++field) {
            const std::uint32_t frame = std::exchange(frames, pages[frames].next);
            pages[frame].page = page_of(l, ragged ? s.stream_pages : e / p_.format.rows, field);
            pages[frame].lane = lane_id;
            pages.mark_dirty(frame);
            tail(s, field) = frame;
        }
        std::byte* page = pages.bytes(s.stream_tail);
        const std::uint32_t row = e % p_.format.rows;
        if (ragged) {
            if (fresh) {
                l.page_first(s.stream_pages++) = e;
                p_.format.begin(page);
            }
            p_.format.put(page, e - l.page_first(s.stream_pages - 1), record);
            l.extent(e / group()).bytes += record.bytes.entry();
        } else {
            std::byte* key = keys_on_storage ? p_.format.key(pages.bytes(tail(s, 0)), row)
                                             : l.key_records() + std::size_t{e} / granule * record.bytes.key;
            std::memcpy(key, record.key, record.bytes.key);
            std::memcpy(p_.format.value(page, row), record.value, record.bytes.value);
        }
        s.stored = e + granule;
        if (!ragged && row + granule == p_.format.rows) seal_tails(s, pages);
    }
    /// Pages that `entries` more entries may begin in each field, at most; and how many there are.
    [[nodiscard]] std::uint32_t pages_begun(const lane& l, std::uint32_t entries) const noexcept {
        if (ragged) return p_.format.pages_for(entries) + 1;
        return p_.format.pages_for(l.state().stored + entries) - pages_before(l);
    }
    [[nodiscard]] std::uint32_t pages_before(const lane& l) const noexcept {
        return ragged ? l.state().stream_pages : p_.format.pages_for(l.state().stored);
    }

    /// Takes runs until the stream has a place for page i of every field. False when the file is full.
    [[nodiscard]] bool extend_to(const lane& l, std::uint32_t i) noexcept {
        return base::extend_stream(l, place_of(i, fields - 1));
    }
    /// Pages that a stream of `pages` pages of every field takes up; appending as many takes no more.
    [[nodiscard]] static constexpr std::uint32_t stream_pages(std::uint32_t pages) noexcept {
        return pages == 0 ? 0 : place_of(pages - 1, fields - 1) + 1;
    }

    // ------------------------------------------------------------------------------------------------------
    // all pages of a lane, to save or to load it. No write is in the air
    /// visit(stored_page) in the order of the stream, unfinished pages last.
    template <class Visit> void each_page(std::uint32_t lane_id, Visit&& visit) const noexcept {
        const lane l = at(lane_id);
        const std::uint32_t complete = complete_pages(l);
        for (std::uint32_t i = 0; i < complete; ++i)
            for (std::uint32_t field = 0; field < fields; ++field)
                visit(stored_page{.page = page_of(l, i, field), .unchanged = true, .ends = true});
        if (l.state().stream_tail == none) return;
        for (std::uint32_t field = 0; field < fields; ++field)
            visit(stored_page{none, write_pool(lane_id).bytes(tail(l.state(), field)),
                              l.state().stored % p_.format.rows, field});
    }
    void pad(const stored_page& p, std::byte* bytes) const noexcept {
        if (fields == 2)
            p_.format.pad_field(bytes, p.open_rows, p.field == 0);
        else
            p_.format.pad(bytes, p.open_rows);
    }
    /// Nothing to note: complete pages never change.
    static void note_saved(std::uint32_t) noexcept {}
    // Tables have their full length, so that nothing of them is lent; unfinished pages are copied to a branch.
    static void offer_tables(std::uint32_t) noexcept {}
    template <class Leave>
    static void extend_tables(std::uint32_t, std::uint32_t, std::uint32_t, Leave&&) noexcept {}
    static void make_room_for_prompt(std::uint32_t, std::uint32_t) noexcept {}
    static void trim_tables(std::uint32_t, std::uint32_t) noexcept {}
    static void empty_tables(std::uint32_t) noexcept {}
    /// Nothing: prompts are entries like others, which borrow no memory of frames.
    [[nodiscard]] static status vacate(const pool&) noexcept { return {}; }
    /// Always: a group has no record beside the state.
    [[nodiscard]] static bool holds_together(const lane&) noexcept { return true; }
    /// Gives the stream of a lane, of which only the state is there, places on storage, and frames to its unfinished pages.
    /// False when there is no room: some have none then.
    [[nodiscard]] bool place_pages(std::uint32_t lane_id, std::span<const std::uint32_t>) noexcept {
        const lane l = at(lane_id);
        lane_state& s = l.state();
        const bool open = std::exchange(s.stream_tail, none) != none;
        s.key_tail = none;
        const std::uint32_t begun = complete_pages_with(l, open) + (open ? 1 : 0);
        if (begun > 0 && !extend_to(l, begun - 1)) return false;
        return !open || open_pages(lane_id, begun - 1);
    }

    // ------------------------------------------------------------------------------------------------------
    // branches: lanes whose streams have runs in common
    /// Sees to it that copy_lane() finds what it needs later, whatever happens until then: room on storage. Page frames for the
    /// unfinished pages of each lane are there in any case, once reads ahead have ended.
    template <class Leave>
    [[nodiscard]] status promise_copy(std::uint32_t from, std::uint32_t, Leave&&) noexcept {
        return base::promise_pages(copied_pages(from));
    }
    void withdraw_copy(std::uint32_t from, std::uint32_t) noexcept {
        base::withdraw_pages(copied_pages(from));
    }
    static void withdraw_copies(std::uint32_t) noexcept {}
    /// Nothing: unfinished pages are copied.
    static void put_away_tails(std::uint32_t) noexcept {}
    /// Lane `to`, which is empty, becomes what lane `from` is, whose writes have landed. It shares the runs that are complete. The
    /// others are copied to runs of its own, and unfinished pages to frames. After an error it has some of this.
    [[nodiscard]] status copy_lane(std::uint32_t from, std::uint32_t to) noexcept {
        const lane parent = at(from), branch = at(to);
        branch.copy_parts(parent, key_bytes(parent.state()));
        lane_state& s = branch.state();
        const bool open = std::exchange(s.stream_tail, none) != none;
        s.key_tail = none;
        const std::uint32_t complete = complete_pages_with(branch, open), begun = complete + (open ? 1 : 0);
        while (s.runs * p_.layout->run_pages() < stream_pages(begun)) {
            std::uint32_t first = parent.run(s.runs);
            if (complete_in_run(s.runs, complete) == p_.layout->run_pages()) {
                if (status full = base::join(first); !full) return full;
            } else if (first = p_.layout->allocate_run(); first == none) {
                return status::failure(errc::disk_full,
                                       "copying a branch's layer: the file has no place for %u entries",
                                       s.stored);
            }
            branch.run(s.runs++) = first;
        }
        if (open && !open_pages(to, complete)) return no_frame();
        for (std::uint32_t field = 0; open && field < fields; ++field)
            std::memcpy(write_pool(to).bytes(tail(s, field)),
                        write_pool(from).bytes(tail(parent.state(), field)), p_.format.page_bytes);
        return copy_pages(parent, branch, write_pool(to));
    }
    /// Bytes of the keys of a lane that live in memory.
    [[nodiscard]] std::size_t key_bytes(const lane_state& s) const noexcept {
        return keys_on_storage ? 0 : std::size_t{s.stored} / granule * p_.lanes->sizes.record.key;
    }

    /// Gives back everything a lane holds; its block starts afresh. No write may be in the air.
    void forget_lane(std::uint32_t lane_id) noexcept {
        const lane l = at(lane_id);
        pool& slots = pool_of(lane_id);
        pool& pages = pages_of(slots);
        for (std::uint32_t u = 0; u < l.state().units; ++u)
            if (l.residency(u).frames() != none) evict(l, u, slots);
        for (std::uint32_t field = 0; field < fields; ++field)
            if (const std::uint32_t f = tail(l.state(), field); f != none) {
                pages.clear_dirty(f);
                pages.settle(f);
            }
        base::reset_lane(lane_id, pages);
    }

  private:
    /// A linked slot for a group; others leave as needed. `none` when what is pinned lies in the way.
    [[nodiscard]] std::uint32_t take_slot(std::uint32_t lane_id, std::uint32_t u, pool& slots) noexcept {
        if (ragged) {
            const std::uint32_t n = frames_of(at(lane_id), u);
            std::uint32_t slot = slots.pop_run(n);
            if (slot == none && !slots.may_make_room(n)) return none;
            while (slot == none && base::evict_victim(slots, lane_id)) slot = slots.pop_run(n);
            return slot;
        } else {
            const std::uint32_t slot = base::acquire(slots, lane_id);
            if (slot != none) slots.link(slot);
            return slot;
        }
    }
    /// Where an entry of a lane's stream lies.
    struct position {
        std::uint32_t page, row;
    };
    [[nodiscard]] position find(const lane& l, std::uint32_t e) const noexcept {
        if (!ragged) return {e / p_.format.rows, e % p_.format.rows};
        const std::uint32_t* first = &l.page_first(0);
        const auto page = static_cast<std::uint32_t>(
            std::upper_bound(first, first + l.state().stream_pages, e) - first - 1);
        return {page, e - first[page]};
    }
    /// Page i of the stream is the unfinished one, which only DRAM has.
    [[nodiscard]] bool is_tail(const lane& l, std::uint32_t i) const noexcept {
        return l.state().stream_tail != none && i == complete_pages(l);
    }
    /// Pages of a field that are on storage or on their way there.
    [[nodiscard]] std::uint32_t complete_pages(const lane& l) const noexcept {
        return complete_pages_with(l, l.state().stream_tail != none);
    }
    [[nodiscard]] std::uint32_t complete_pages_with(const lane& l, bool open) const noexcept {
        return ragged ? l.state().stream_pages - (open ? 1 : 0) : l.state().stored / p_.format.rows;
    }
    /// The tail pages are complete: they go to storage.
    void seal_tails(lane_state& s, pool& pages) noexcept {
        for (std::uint32_t field = 0; field < fields; ++field) {
            const std::uint32_t finished = std::exchange(tail(s, field), none);
            if (fields == 2)
                p_.format.pad_field(pages.bytes(finished), p_.format.rows, field == 0);
            else
                p_.format.pad(pages.bytes(finished), p_.format.rows);
            queue_write(pages, finished);
            pages.clear_dirty(finished);
        }
    }

    /// Takes a frame for the unfinished page of each field, which is page i. False when no frame is free.
    [[nodiscard]] bool open_pages(std::uint32_t lane_id, std::uint32_t i) noexcept {
        const lane l = at(lane_id);
        pool& pages = write_pool(lane_id);
        for (std::uint32_t field = 0; field < fields; ++field) {
            const std::uint32_t f = acquire_free(pages);
            if (f == none) return false;
            pages[f].page = page_of(l, i, field);
            pages[f].lane = lane_id;
            pages.mark_dirty(f);
            tail(l.state(), field) = f;
        }
        return true;
    }
    /// Pages of the runs of a lane that a branch of it has for itself.
    [[nodiscard]] std::uint32_t copied_pages(std::uint32_t lane_id) const noexcept {
        const lane l = at(lane_id);
        const bool open = l.state().stream_tail != none;
        const std::uint32_t complete = complete_pages_with(l, open), n = p_.layout->run_pages();
        std::uint32_t pages = 0;
        for (std::uint32_t r = 0; r * n < stream_pages(complete + (open ? 1 : 0)); ++r)
            pages += complete_in_run(r, complete) == n ? 0 : n;
        return pages;
    }
    /// Copies the complete pages of runs that the branch has for itself, as many at once as frames and an io_batch have room for.
    [[nodiscard]] status copy_pages(const lane& parent, const lane& branch, pool& pages) noexcept {
        io_batch& reads = p_.io->at(0);
        reads.clear();
        const auto send = [&]() -> status {
            if (reads.pages().empty()) return {};
            status done = p_.io->submit_reads(0, pages, true);
            p_.io->drain(0);
            if (done.ok()) done = reads.error();
            if (done.ok()) {
                const std::uint32_t id =
                    p_.io->free_io_batch(base::first_write_io_batch(), base::write_io_batches);
                io_batch& writes = p_.io->at(id);
                for (const page_transfer& t : reads.pages()) writes.add(pages[t.frame].page, t.frame, none);
                done = p_.io->submit_writes(id, pages, true);
                p_.io->drain(id);
                if (done.ok()) done = writes.error();
                writes.clear();
            }
            for (const page_transfer& t : reads.pages()) pages.unlink(t.frame);
            if (done.ok())
                p_.stats->bytes_moved_by_forks += reads.pages().size() * std::uint64_t{p_.format.page_bytes};
            reads.clear();
            return done;
        };
        const std::uint32_t complete = complete_pages(branch), n = p_.layout->run_pages();
        for (std::uint32_t r = 0; r < branch.state().runs; ++r)
            for (std::uint32_t i = 0; branch.run(r) != parent.run(r) && i < n; ++i) {
                if (page_at(r * n + i) >= complete) continue;
                if (pages.free() == 0 || !reads.room(1))
                    if (status s = send(); !s) return s;
                const std::uint32_t f = acquire_free(pages);
                if (f == none) return no_frame();
                pages[f].page = branch.run(r) + i;
                pages.link(f);
                reads.add(parent.run(r) + i, f, none);
            }
        return send();
    }
    [[nodiscard]] static status no_frame() noexcept {
        return status::failure(
            errc::bound_too_small,
            "copying a branch's layer: no page frame is free for its pages; raise memory_bytes");
    }
    /// Places of a run that have complete pages, where each field has so many.
    [[nodiscard]] std::uint32_t complete_in_run(std::uint32_t run, std::uint32_t complete) const noexcept {
        std::uint32_t n = 0;
        for (std::uint32_t i = 0; i < p_.layout->run_pages(); ++i)
            if (page_at(run * p_.layout->run_pages() + i) < complete) ++n;
        return n;
    }
    /// The page of its field that has a place of the stream.
    [[nodiscard]] static constexpr std::uint32_t page_at(std::uint32_t place) noexcept {
        return fields == 1 ? place : place / (2 * split_run) * split_run + place % split_run;
    }
    /// Page i of a field (the only one; or keys, values) in the order of the stream.
    [[nodiscard]] static constexpr std::uint32_t place_of(std::uint32_t i, std::uint32_t field) noexcept {
        return fields == 1 ? i : i / split_run * 2 * split_run + field * split_run + i % split_run;
    }
    [[nodiscard]] std::uint32_t page_of(const lane& l, std::uint32_t i, std::uint32_t field) const noexcept {
        return stream_page(l, place_of(i, field));
    }
    [[nodiscard]] static std::uint32_t& tail(lane_state& s, std::uint32_t field) noexcept {
        return field + 1 < fields ? s.key_tail : s.stream_tail;
    }
    /// Page frames, and which of them carry the pages of an io_batch.
    struct carried_pages {
        const pool& frames;
        const page_carriers& of_batch;
    };
    /// Where page i of a field is in DRAM once the io_batch that needs it has landed.
    [[nodiscard]] std::byte* landed(const lane& l, const carried_pages& pages, std::uint32_t i,
                                    std::uint32_t field) const noexcept {
        return pages.frames.bytes(is_tail(l, i) ? tail(l.state(), field)
                                                : pages.of_batch.frame_of(page_of(l, i, field)));
    }

    /// Makes io_batch f carry a page, unless it does already for another group. False when no frame is left.
    [[nodiscard]] bool carry(io_batch& f, std::uint32_t page, std::uint32_t item, pool& pages,
                             bool spare_too = false) noexcept {
        std::uint32_t frame = f.carriers().frame_of(page);
        if (frame == none) {
            // A page that only DRAM has needs no read. Its frame may be one of many whose writes failed.
            const bool in_dram = unsettled_frame(pages, page) != none;
            frame = acquire_free(pages, spare_too || in_dram ? 0 : spare_pages_);
            if (frame == none) return false;
            const std::uint32_t written = unsettled_frame(pages, page); // that may have waited for the write
            pages[frame].page = page;
            pages.link(frame);
            f.carriers().add(page, frame, written != none);
            if (written != none) { // on its way to storage: DRAM has it
                std::memcpy(pages.bytes(frame), pages.bytes(written), p_.format.page_bytes);
                f.add(page, frame, none, true);
            }
        }
        if (f.carriers().holds(page)) return true;
        f.add(page, frame, item);
        if (item != none) ++f.items()[item].pending;
        return true;
    }
    static void release_carriers(io_batch& f, pool& pages) noexcept {
        for (const page_transfer& t : f.pages())
            if (f.carriers().frame_of(t.page) != none && pages[t.frame].linked) pages.unlink(t.frame);
        f.carriers().clear();
    }

    /// Reads the first `Count` fields of a lane's stream; values are empty when they are not among them.
    template <std::uint32_t Count, class Visit>
    [[nodiscard]] status scan_fields(std::uint32_t lane_id, Visit&& visit) noexcept {
        constexpr bool values = Count == fields;
        const lane l = at(lane_id);
        pool& pages = write_pool(lane_id);
        const std::uint32_t rows = p_.format.rows, complete = complete_pages(l);
        io_batch& f = p_.io->at(0);
        const carried_pages carried{pages, f.carriers()};
        const auto show = [&](std::uint32_t i, std::uint32_t left) {
            const std::uint32_t n = p_.format.entries_in(landed(l, carried, i, 0), left);
            const records_view k = p_.format.keys(landed(l, carried, i, 0), 0, n);
            visit(k, values ? p_.format.values(landed(l, carried, i, Count - 1), 0, n) : records_view{});
        };
        for (std::uint32_t i = 0; i < complete;) {
            f.clear();
            const std::uint32_t first = i;
            for (; i < complete && f.room(Count); ++i) {
                const auto before = static_cast<std::uint32_t>(f.pages().size());
                std::uint32_t field = 0;
                while (field < Count && carry(f, page_of(l, i, field), none, pages, !values)) ++field;
                if (field == Count) continue;
                drop_pages(f, before, pages);
                break;
            }
            if (f.pages().empty())
                return status::failure(errc::bound_too_small,
                                       "memory_bytes: no page frame is free to read with");
            status done = p_.io->submit_reads(0, pages);
            p_.io->drain(0);
            if (done.ok()) done = f.error();
            for (std::uint32_t j = first; j < i && done.ok(); ++j) // in stream order, whatever was read
                show(j, rows);
            release_carriers(f, pages);
            if (!done.ok()) return done;
        }
        if (l.state().stream_tail != none) show(complete, l.state().stored % rows);
        return {};
    }

    /// Undoes the additions of a group that could not be planned completely.
    void drop_pages(io_batch& f, std::uint32_t before, pool& pages) noexcept {
        const auto added = f.pages().subspan(before);
        for (std::size_t i = added.size(); i-- > 0;) {
            const page_transfer& t = added[i];
            if (t.item != none) --f.items()[t.item].pending;
            if (f.holds_before(t.page, before + i)) continue;
            f.carriers().take_back(t.page);
            pages.unlink(t.frame);
        }
        f.truncate(before);
    }

    page_format slot_{};
    std::span<pool> page_pools_;
    std::uint32_t spare_pages_ = 1;
};

}} // namespace kvtl::v0
