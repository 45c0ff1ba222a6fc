// What every store of a shard has in common: units that are resident in frames, streams of pages on storage, and
// writes that are batched and may fail in the background.
//
// What:   a resident unit is a chain of frames of its lane's pool: its pages (unit_store.hpp), or one slot (group_store.hpp).
//         The caller says what comes in, the replacement policy who leaves, the layout where bytes lie.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/frame_pool.hpp>
#include <kvtl/core/store/lane.hpp>
#include <kvtl/core/store/page_format.hpp>
#include <kvtl/core/store/record_rows.hpp>
#include <kvtl/core/store/transfers.hpp>
#include <kvtl/slots/layout.hpp>
#include <kvtl/statistics.hpp>

namespace kvtl { inline namespace v0 {

/// A page of a lane's entries, where a save finds it.
struct stored_page {
    std::uint32_t page = none;      ///< of the shard's file; none: only memory has it
    std::byte* bytes = nullptr;     ///< in memory, if it is there
    std::uint32_t open_rows = none; ///< entries of an unfinished page, behind which its bytes mean nothing
    std::uint32_t field = 0;        ///< where keys and values have pages of their own: 0 keys, 1 values
    bool unchanged = false;         ///< since the sequence was saved last, if that save has the page
    bool ends = false;              ///< the last page of a unit, or a complete page of a stream
};

/// Types bundles everything the shard's classes need: element, codec, lane, layout, pool, transfers, device
/// (see cache_types.hpp).
template <class Types> class page_store {
  public:
    using element_type = typename Types::element_type;
    using lane = typename Types::lane;
    using pool = typename Types::pool;
    using residency = unit_residency;
    using layout_state = typename Types::layout_state;
    using codec_type = typename Types::codec;
    static constexpr bool ragged = Types::compressor::ragged;

    struct parts {
        page_format format;
        page_format plain; ///< pages of plain rows: staged chunks of a prompt
        record_shape row;
        const codec_type* codec = nullptr;
        layout_state* layout = nullptr;
        typename Types::transfers* io = nullptr;
        any_io::device* device = nullptr;
        std::span<pool> pools;
        /// By the first page of a place or run: its owners but one. Empty where a shard has one sequence.
        std::span<std::uint8_t> other_owners;
        const typename Types::lane_table* lanes = nullptr;
        statistics* stats = nullptr;
        std::uint32_t slots_apart = 1; ///< sequences of this shard are that many slots apart
        std::uint32_t pool_layers = 1; ///< pools of a sequence: one, or one per layer
        /// Decode adds a unit while the sequence's places have no more pages than that.
        std::uint32_t grow_pages = 0;
        std::uint32_t reserved_pages = 0;
    };

    page_store() = default;
    explicit page_store(const parts& p) noexcept : p_(p) {
        std::fill(p_.other_owners.begin(), p_.other_owners.end(), std::uint8_t{0});
    }

    // The first io_batches carry reads of the current step (double-buffered), the next ones prefetches, the last
    // writes.
    static constexpr std::uint32_t write_io_batches = 4;
    static constexpr std::uint32_t step_io_batches = 2;

    [[nodiscard]] const page_format& format() const noexcept { return p_.format; }
    [[nodiscard]] const page_format& plain_format() const noexcept { return p_.plain; }
    /// The codec of a lane's records.
    [[nodiscard]] decltype(auto) codec(std::uint32_t lane_id) const noexcept {
        if constexpr (codec_per_lane<typename Types::compressor>)
            return codec_type(
                p_.codec->at({p_.lanes->layer_of(lane_id), p_.lanes->in_layer(lane_id) * p_.lanes->lane_heads,
                              at(lane_id).codec()}));
        else
            return static_cast<const codec_type&>(*p_.codec);
    }
    /// The codec of a unit of the lane that a step has read.
    [[nodiscard]] decltype(auto) unit_codec(std::uint32_t lane_id) const noexcept {
        if constexpr (std::is_same_v<typename Types::unit_codec, codec_type>) {
            return codec(lane_id);
        } else {
            return typename Types::unit_codec(codec(lane_id), p_.row);
        }
    }
    /// Fits the codec to a lane whose prompt has come, before any of it is encoded. `E`: float or the plain type.
    template <element E>
    void fit_codec(std::uint32_t lane_id, const rows_view<E>& keys, const rows_view<E>& values,
                   const prompt_queries& queries, std::span<std::byte> scratch) const noexcept {
        if constexpr (codec_fits_queries<typename Types::compressor>)
            p_.codec->fit(at(lane_id).codec(), keys, values, queries, scratch);
        else if constexpr (codec_fits_lanes<typename Types::compressor>)
            p_.codec->fit(at(lane_id).codec(), keys, values, scratch);
    }
    [[nodiscard]] layout_state& layout() const noexcept { return *p_.layout; }
    [[nodiscard]] typename Types::transfers& io() const noexcept { return *p_.io; }
    [[nodiscard]] statistics& stats() const noexcept { return *p_.stats; }
    [[nodiscard]] const typename Types::lane_table& lanes() const noexcept { return *p_.lanes; }
    [[nodiscard]] lane at(std::uint32_t lane_id) const noexcept { return p_.lanes->at(lane_id); }
    [[nodiscard]] pool& pool_of(std::uint32_t lane_id) const noexcept {
        const std::size_t of_slot =
            p_.pools.size() == p_.pool_layers ? 0 : p_.lanes->slot_of(lane_id) / p_.slots_apart;
        if (Types::virtualised && p_.pool_layers > 1)
            return p_.pools[of_slot * p_.pool_layers + p_.lanes->layer_of(lane_id)];
        return p_.pools[of_slot];
    }
    [[nodiscard]] std::span<pool> pools() const noexcept { return p_.pools; }

    // ------------------------------------------------------------------------------------------------------
    // residency
    /// The prefetch or selection that reads a resident unit, or none.
    [[nodiscard]] static std::uint32_t io_batch_of(const residency& now, const pool& frames) noexcept {
        const std::uint8_t id =
            now.frames() == none ? frame_record::no_io_batch : frames[now.frames()].io_batch;
        return id == frame_record::no_io_batch ? none : id;
    }
    static void set_io_batch(const residency& now, pool& frames, std::uint32_t id) noexcept {
        if (now.frames() != none)
            frames[now.frames()].io_batch =
                id == none ? frame_record::no_io_batch : static_cast<std::uint8_t>(id);
    }
    /// Tells the replacement policy about a resident unit.
    void note_resident(const lane& l, std::uint32_t u, pool& frames, bool updated) noexcept {
        const std::uint32_t handle = l.residency(u).frames();
        const std::uint32_t pages = frames.pages_of(handle);
        frame_record& head = frames[handle];
        head.used = frames.steps();
        if (!head.admitted) {
            frames.replacement().admit(handle, {pages, updated, head.lane, u});
            head.admitted = true;
        } else if (updated) {
            frames.replacement().refresh(handle, {pages, updated, head.lane, u});
        }
    }
    void touch(const residency& now, pool& frames) noexcept {
        frames[now.frames()].used = frames.steps();
        if (frames[now.frames()].admitted) frames.replacement().touch(now.frames());
    }
    /// A resident unit that a step has chosen is used now, and leaves after all others until it is pinned.
    void want(const residency& now, pool& frames) noexcept {
        touch(now, frames);
        frames[now.frames()].wanted = true;
    }
    void pin(const residency& now, pool& frames) noexcept {
        ++frames[now.frames()].pins;
        frames[now.frames()].wanted = false;
    }
    void unpin(const residency& now, pool& frames) noexcept { --frames[now.frames()].pins; }
    /// A frame that nothing holds, for a lane's unit; evicts others as needed. `none` when everything is pinned.
    [[nodiscard]] std::uint32_t acquire(pool& frames, std::uint32_t lane_id) noexcept {
        for (;;) {
            if (const std::uint32_t f = frames.pop_free(); f != none) return f;
            if (!await_write(frames) && !evict_victim(frames, lane_id)) return none;
        }
    }
    /// One that no unit of the pool has to leave for, and that leaves `spare` others free. `none` when only failed writes, or
    /// reads that have not ended, could make room.
    [[nodiscard]] std::uint32_t acquire_free(pool& frames, std::uint32_t spare = 0) noexcept {
        while (frames.free() <= spare)
            if (!await_write(frames)) return none;
        return frames.pop_free();
    }
    /// Its open page stays, as a lone tail.
    void evict(const lane& l, std::uint32_t u, pool& frames) noexcept {
        residency& now = l.residency(u);
        if (frames[now.frames()].admitted) frames.replacement().remove(now.frames());
        std::uint32_t tail = none;
        for (std::uint32_t f = now.frames(); f != none;) {
            const std::uint32_t next = frames[f].next;
            if (frames[f].dirty) tail = f;
            unlink(frames, f);
            f = next;
        }
        now.set_lone_tail(tail);
    }
    /// Who leaves first leaves. False when nobody may.
    bool evict_victim(pool& frames, std::uint32_t lane_id) noexcept {
        const std::uint32_t victim = frames.victim(lane_id);
        if (victim != none) evict(at(frames[victim].lane), frames[victim].unit, frames);
        return victim != none;
    }
    /// No unit of a pool is resident any more. Tails stay.
    void evict_all(pool& frames) noexcept {
        for (std::uint32_t f = 0; f < frames.size(); ++f)
            if (frames[f].linked && frames[f].unit != none) {
                const lane l = at(frames[f].lane);
                if (l.residency(frames[f].unit).frames() == f) evict(l, frames[f].unit, frames);
            }
    }
    /// A pool has its first `n` own frames from now on. Where that is fewer, units leave that have one of the others, and
    /// unfinished pages move. No write is in the air, and nothing is pinned.
    void limit_frames(pool& frames, std::uint32_t n, bool large) noexcept {
        leave_frames(frames, n, frames.there());
        frames.limit(n, large);
        move_tails(frames, n, frames.own());
    }
    /// The same before its frames move, and it has borrowed none then.
    void keep_frames(pool& frames, std::uint32_t n) noexcept {
        leave_frames(frames, n, frames.size());
        frames.withhold_borrowed();
        frames.limit(n);
        move_tails(frames, n, frames.size());
        frames.give_all_back();
    }

    // ------------------------------------------------------------------------------------------------------
    // storage
    /// Makes sure that `pages` more pages than are in use could be written. Called before entries are
    /// accepted. A disk without room for the rest of a step is asked for half of that, down to what is needed.
    [[nodiscard]] status ensure_space(std::uint32_t pages) noexcept {
        const file_map& map = p_.io->map();
        std::uint32_t end = p_.layout->top() + pages;
        if (promised_pages_ > 0)
            end = std::min(end + promised_pages_, static_cast<std::uint32_t>(p_.other_owners.size()));
        while (p_.reserved_pages < end) {
            std::uint32_t n = map.step_pages - p_.reserved_pages % map.step_pages; // to the end of the step
            const std::uint32_t needed = std::min(n, end - p_.reserved_pages);
            status s = reserve(p_.reserved_pages, n);
            while (s.code() == errc::disk_full && n > needed) {
                n = std::max(needed, n / 2);
                s = reserve(p_.reserved_pages, n);
            }
            if (!s) return s;
            p_.reserved_pages += n;
        }
        return {};
    }
    /// `more` pages are kept for lanes that a branch has still to copy, until withdraw_pages(). After an error none is.
    [[nodiscard]] status promise_pages(std::uint32_t more) noexcept {
        promised_pages_ += more;
        status s = ensure_space(0);
        if (!s) promised_pages_ -= more;
        return s;
    }
    void withdraw_pages(std::uint32_t pages) noexcept { promised_pages_ -= pages; }
    [[nodiscard]] std::uint32_t promised_pages() const noexcept { return promised_pages_; }
    /// Gives pages of one step room in the file.
    [[nodiscard]] status reserve(std::uint32_t first, std::uint32_t pages) noexcept {
        const file_map& map = p_.io->map();
        return p_.device->reserve(map.offset(first), std::uint64_t{pages} * map.page_bytes);
    }

    /// Storage page i of a lane's stream (staged prompt, or entries of groups).
    [[nodiscard]] std::uint32_t stream_page(const lane& l, std::uint32_t i) const noexcept {
        return l.run(i / p_.layout->run_pages()) + i % p_.layout->run_pages();
    }
    /// Takes runs until the stream has page i. False when the file is full.
    [[nodiscard]] bool extend_stream(const lane& l, std::uint32_t i) noexcept {
        while (l.state().runs * p_.layout->run_pages() <= i) {
            const std::uint32_t first = p_.layout->allocate_run();
            if (first == none) return false;
            l.run(l.state().runs++) = first;
        }
        return true;
    }
    /// Gives the stream's last runs back, until it has `runs`.
    void shorten_stream(const lane& l, std::uint32_t runs) noexcept {
        while (l.state().runs > runs) {
            const std::uint32_t first = l.run(--l.state().runs);
            if (!leave(first)) p_.layout->release_run(first);
        }
    }
    void release_stream(const lane& l) noexcept { shorten_stream(l, 0); }

    // ------------------------------------------------------------------------------------------------------
    // owners of places and runs. One with several owners is never written, has no open page, and no write to it is in the air
    /// The place or run that begins with this page has other owners, too.
    [[nodiscard]] bool has_other_owners(std::uint32_t first_page) const noexcept {
        return !p_.other_owners.empty() && p_.other_owners[first_page] > 0;
    }
    /// Some place or run has several owners.
    [[nodiscard]] bool any_shared() const noexcept { return shared_ > 0; }
    /// One more owner. Fails, and nothing has changed, where there are as many as can be counted.
    [[nodiscard]] status join(std::uint32_t first_page) noexcept {
        std::uint8_t& others = p_.other_owners[first_page];
        if (others == most_owners - 1)
            return status::failure(errc::out_of_range,
                                   "fork: %u sequences share a page already; valid: as many at most",
                                   most_owners);
        ++others, ++shared_;
        return {};
    }
    /// Sequences that can share a page.
    static constexpr std::uint32_t most_owners = 256;

    // ------------------------------------------------------------------------------------------------------
    // writing
    /// Puts a frame's page on the list of writes that flush_writes() submits together. The frame keeps its
    /// bytes until the write has landed.
    void queue_write(pool& frames, std::uint32_t f) noexcept {
        if (open_write_ == none || open_pool_ != &frames || !p_.io->at(open_write_).room(1)) {
            flush_writes();
            open_write_ = p_.io->free_io_batch(first_write_io_batch(), write_io_batches);
            open_pool_ = &frames;
        }
        frames.write_started(f);
        p_.io->at(open_write_).add(frames[f].page, f, none);
    }
    /// A write that cannot be submitted leaves its frames `failed`; the next call of the manager reports it.
    void flush_writes() noexcept {
        if (open_write_ == none) return;
        const std::uint32_t id = open_write_;
        open_write_ = none;
        static_cast<void>(p_.io->submit_writes(id, *open_pool_));
    }
    void settle_all_writes(pool& frames) noexcept {
        flush_writes();
        const auto busy = [&frames] {
            for (const std::uint32_t f : frames.unsettled())
                if (frames[f].writing) return true;
            return false;
        };
        while (busy()) p_.io->poll(true);
    }
    [[nodiscard]] bool has_failed_writes(const pool& frames) const noexcept {
        for (const std::uint32_t f : frames.unsettled())
            if (frames[f].failed) return true;
        return false;
    }
    /// Submits every failed write again and waits for the outcome.
    [[nodiscard]] status retry_writes(pool& frames) noexcept {
        if (status s = ensure_space(0); !s) return s;
        for (std::uint32_t f = 0; f < frames.size(); ++f)
            if (frames[f].failed) queue_write(frames, f);
        settle_all_writes(frames);
        return has_failed_writes(frames) ? write_error(frames) : status{};
    }
    [[nodiscard]] status write_error(const pool& frames) const noexcept {
        for (const std::uint32_t f : frames.unsettled())
            if (frames[f].failed)
                return status::failure(
                    errc::writes_pending,
                    "a page at offset %llu could not be written; its entries are kept in memory, "
                    "appends wait for retry_writes()",
                    static_cast<unsigned long long>(p_.io->map().offset(frames[f].page)));
        return {};
    }

    [[nodiscard]] std::uint32_t first_write_io_batch() const noexcept { return first_write_io_batch_; }
    void set_first_write_io_batch(std::uint32_t id) noexcept { first_write_io_batch_ = id; }
    [[nodiscard]] std::uint32_t unsettled_frame(const pool& frames, std::uint32_t page) const noexcept {
        for (const std::uint32_t f : frames.unsettled())
            if (frames[f].page == page) return f;
        return none;
    }

  protected:
    /// True when a place or run that an owner leaves has others.
    [[nodiscard]] bool leave(std::uint32_t first_page) noexcept {
        if (!has_other_owners(first_page)) return false;
        --p_.other_owners[first_page], --shared_;
        return true;
    }
    /// Gives a chain of frames back that was never a unit's.
    static void give_back(pool& frames, std::uint32_t chain) noexcept {
        while (chain != none) unlink(frames, std::exchange(chain, frames[chain].next));
    }
    /// What a lane held is gone but for its stream: its block starts afresh. `writes`: the pool that carried its pages.
    void reset_lane(std::uint32_t lane_id, pool& writes) noexcept {
        for (std::uint32_t f = 0; f < writes.size(); ++f)
            if (writes[f].failed && writes[f].lane == lane_id) writes.write_finished(f, true);
        release_stream(at(lane_id));
        at(lane_id).reset();
    }

    parts p_{};

  private:
    /// Units leave that have one of the frames [first, end).
    void leave_frames(pool& frames, std::uint32_t first, std::uint32_t end) noexcept {
        for (std::uint32_t f = 0; f < end; ++f)
            if (f + frames[f].run > first && frames[f].linked && frames[f].unit != none)
                evict(at(frames[f].lane), frames[f].unit, frames);
    }
    /// Unfinished pages in the frames [first, end) move to others.
    void move_tails(pool& frames, std::uint32_t first, std::uint32_t end) noexcept {
        for (std::uint32_t t = 0; t < frames.tail_count(); ++t) {
            const std::uint32_t from = frames.tails()[t].frame;
            if (from < first || from >= end) continue;
            const std::uint32_t lane_id = frames[from].lane, unit = frames[from].unit,
                                to = acquire(frames, lane_id);
            assert(to != none); // the fewest frames are more than tails
            frames.move_tail(from, to);
            at(lane_id).residency(unit).set_lone_tail(to);
        }
    }
    /// Of a unit's frames. Slots of ragged groups are runs.
    static void unlink(pool& frames, std::uint32_t f) noexcept {
        if constexpr (Types::sequential && ragged)
            frames.unlink_run(f);
        else
            frames.unlink(f);
    }
    /// Waits for a write to end, which frees a frame. Returns false if no write is under way.
    bool await_write(pool& frames) noexcept {
        if (frames.draining() == 0) return false;
        flush_writes();
        p_.io->poll(true);
        return true;
    }

    std::uint64_t shared_ = 0; ///< sum of other_owners
    std::uint32_t promised_pages_ = 0;
    std::uint32_t open_write_ = none;
    pool* open_pool_ = nullptr;
    std::uint32_t first_write_io_batch_ = step_io_batches;
};

}} // namespace kvtl::v0
