// Frames: DRAM buffers of one size, mostly a page, and the units that are resident in them.
//
// A frame may be at the same time
//   linked   in the chain of a resident unit,
//   dirty    the last page of a unit, with entries that storage has not (a *tail*),
//   writing  on its way to storage,
//   failed   a write of it failed; it keeps the only copy until the write is tried again.
// It is free when it is none of these. A frame that is only `writing` counts as free already: whoever needs
// it waits for the write, so that which unit is evicted never depends on how fast the device is.
//
// Behind its own frames a pool may have *borrowed* ones: their bytes are those that tables of units do not need yet.
// They are away until borrow() brings them in, and go all at once, from an empty pool, when tables grow
// (unit_store.hpp): who is resident never depends on which frames are borrowed. What is lent as plain memory is never theirs.
// limit() sends own frames away in the same manner, the last ones first, and has them come back. Pools whose memory and tables lie
// side by side divide their frames anew (pool_division.hpp).
//
// Where units differ in size (ragged records) a frame is a small piece, and a unit is linked as a *run* of
// frames in a row: its head stands for it, the frames behind the head belong to it. Such a pool hands out
// runs only; its frames are never tails and never written from.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/unit.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace kvtl { inline namespace v0 {

struct frame_record {
    std::uint32_t next = none; ///< next frame of the chain, or of the free list
    std::uint32_t page = none; ///< page of the shard's file that this frame holds
    std::uint32_t lane = none; ///< owner, as index into the lanes of the pool's shard
    std::uint32_t unit = none;
    std::uint32_t tail = none; ///< tails: its number among them
    std::uint32_t used = 0; ///< first frame of a chain: the pool's step that last chose or updated the unit
    std::uint16_t pins = 0;
    std::uint16_t run = 1; ///< frames in a row that this one heads
    bool behind = false;   ///< belongs to the run of a head before it
    bool linked = false;
    bool dirty = false;
    bool writing = false;
    bool failed = false;
    bool away = false;     ///< it has no bytes now, borrowed or one of its own
    bool admitted = false; ///< first frame of a chain the replacement policy knows
    bool wanted = false;   ///< the same: the step that goes on has chosen the unit and not attended it yet
    std::uint8_t io_batch = no_io_batch; ///< first frame of a chain: the prefetch or selection that reads it

    static constexpr std::uint8_t no_io_batch = 255;

    [[nodiscard]] bool idle() const noexcept {
        return !linked && !behind && !dirty && !writing && !failed && !away;
    }
};

/// A frame with entries that storage has not.
struct tail_record {
    std::uint32_t frame = none;
    std::uint32_t stamp = 0; ///< when it last received an entry
};

/// A frame that is held, as a save keeps it (core/save/hot_set.hpp).
struct held_frame {
    std::uint32_t frame = none, next = none;
    std::uint32_t lane = 0, unit = 0; ///< lane: its number in the sequence
    std::uint32_t bits = 0;
};
/// Of a pool, as a save keeps them.
struct pool_counts {
    std::uint32_t frames = 0, tails = 0, clock = 0;
};

/// Replacement: a policy of that slot, whose state decides who leaves. Nothing else of a preset matters, so
/// that presets with one policy share this code. Aligned: the pools of different threads lie side by side.
template <class Replacement> class alignas(64) frame_pool {
  public:
    using replacement_state = typename Replacement::state;
    static constexpr std::uint32_t max_run = 32; ///< frames

    /// `tails`: frames that may be tails at the same time, each with `running_bytes` beside it.
    [[nodiscard]] static std::size_t table_bytes(std::uint32_t frames, std::uint32_t unit_pages,
                                                 std::uint32_t tails, std::size_t running_bytes) noexcept {
        carver c;
        take(c, frames, unit_pages, tails, running_bytes);
        return c.used();
    }

    frame_pool() = default;
    /// `borrowed`: where the bytes of borrowed frames would be; none of it is touched before borrow().
    frame_pool(const typename Replacement::config& config, std::span<std::byte> frames,
               std::uint32_t page_bytes, std::uint32_t unit_pages, std::uint32_t tail_quota,
               std::size_t running_bytes, carver& metadata, std::span<std::byte> borrowed = {}) noexcept
        : frame_pool(
              config, frames, page_bytes, unit_pages, tail_quota, running_bytes,
              take(metadata,
                   static_cast<std::uint32_t>(frames.size() / page_bytes + borrowed.size() / page_bytes),
                   unit_pages, tail_quota, running_bytes),
              borrowed) {}
    struct tables {
        std::span<frame_record> frames;
        std::span<std::uint32_t> unsettled;
        std::span<tail_record> tails;
        std::span<std::byte> running, replacement;
    };
    /// The same with tables that others lie beside, value-initialised.
    frame_pool(const typename Replacement::config& config, std::span<std::byte> frames,
               std::uint32_t page_bytes, std::uint32_t unit_pages, std::uint32_t tail_quota,
               std::size_t running_bytes, const tables& t, std::span<std::byte> borrowed) noexcept
        : memory_(frames.data()), memory_bytes_(frames.size() / page_bytes * page_bytes),
          page_bytes_(page_bytes), own_(static_cast<std::uint32_t>(frames.size() / page_bytes)), there_(own_),
          count_(own_ + static_cast<std::uint32_t>(borrowed.size() / page_bytes)),
          borrowed_memory_(borrowed.empty() ? nullptr : borrowed.data()), away_(count_ - own_),
          tail_quota_(tail_quota), running_bytes_(running_bytes) {
        attach(config, t, unit_pages);
        for (std::uint32_t i = own_; i < count_; ++i) frame_[i].away = true;
        for (std::uint32_t i = own_; i-- > 0;) push_free(i);
        longest_run_ = std::min(unit_pages, max_run);
        count_gap(own_, +1);
        resize_replacement();
    }

    /// Memory that transfers read and write page by page, without frames to hand out.
    [[nodiscard]] static frame_pool plain(std::span<std::byte> memory, std::uint32_t page_bytes) noexcept {
        frame_pool pages;
        pages.page_bytes_ = page_bytes;
        pages.bind(memory);
        return pages;
    }

    [[nodiscard]] std::byte* bytes(std::uint32_t frame) const noexcept {
        if (frame >= own_ && borrowed_memory_ != nullptr)
            return borrowed_memory_ + std::size_t{frame - own_} * page_bytes_;
        return memory_ + std::size_t{frame} * page_bytes_;
    }
    [[nodiscard]] frame_record& operator[](std::uint32_t i) noexcept { return frame_[i]; }
    [[nodiscard]] const frame_record& operator[](std::uint32_t i) const noexcept { return frame_[i]; }
    [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
    [[nodiscard]] std::uint32_t frame_bytes() const noexcept { return page_bytes_; }
    /// Of its own frames that are there; what is lent with bind() may go on behind them.
    [[nodiscard]] std::span<std::byte> memory() const noexcept { return {memory_, memory_bytes_}; }
    /// From now on the frames' bytes lie here (layer_arenas.hpp). What they held before does not come along.
    void bind(std::span<std::byte> memory) noexcept {
        memory_ = memory.data();
        memory_bytes_ = memory.size();
    }
    [[nodiscard]] replacement_state& replacement() noexcept { return replacement_; }
    /// A step of a layer is over.
    void tick() noexcept {
        ++steps_;
        replacement_.tick();
    }
    [[nodiscard]] std::uint32_t steps() const noexcept { return steps_; }
    [[nodiscard]] std::uint32_t free() const noexcept { return free_count_; }
    [[nodiscard]] std::uint32_t in_use() const noexcept { return there_ + borrowed() - free_count_; }
    /// Of its own frames, since limit() at most: the bytes of borrowed ones are counted where they come from.
    [[nodiscard]] std::uint32_t peak() const noexcept { return std::min(peak_, there_); }
    /// The first `frames` frames of the arena have been lent as plain memory.
    void note_used(std::uint32_t frames) noexcept { peak_ = frames > peak_ ? frames : peak_; }
    /// Frames whose only state is an unfinished write.
    [[nodiscard]] std::uint32_t draining() const noexcept { return draining_; }

    /// A free frame, or `none`; for pools in which nothing is a run.
    [[nodiscard]] std::uint32_t pop_free() noexcept {
        const std::uint32_t i = free_;
        if (i == none) return none;
        free_ = frame_[i].next;
        --free_count_;
        frame_[i] = frame_record{};
        peak_ = in_use() > peak_ ? in_use() : peak_;
        return i;
    }

    /// Whether `n` free frames lie in a row, for pools in which everything is a run.
    [[nodiscard]] bool has_run(std::uint32_t n) const noexcept {
        return std::any_of(&gaps_[n], &gaps_[longest_run_] + 1, [](std::uint32_t c) { return c > 0; });
    }
    /// The head of `n` free frames in a row, linked, or `none`; for pools in which everything is a run, of at most
    /// `unit_pages` frames. Looks first where a run was freed last, else behind the one that was taken last.
    [[nodiscard]] std::uint32_t pop_run(std::uint32_t n) noexcept {
        assert(n > 0 && n <= longest_run_);
        if (!has_run(n)) return none;
        for (std::uint32_t first = search_from_;;) {
            const std::uint32_t room = free_from(first);
            if (room >= n) return take_run(first, n);
            first = place_behind(first + (room > 0 ? room : frame_[first].run));
        }
    }
    /// Frees a run that is linked.
    void unlink_run(std::uint32_t head) noexcept {
        const std::uint32_t n = frame_[head].run, before = free_before(head), after = free_from(head + n);
        for (std::uint32_t i = 0; i < n; ++i) frame_[head + i] = frame_record{};
        free_count_ += n;
        count_gap(before, -1), count_gap(after, -1), count_gap(before + n + after, +1);
        search_from_ = in_use() == 0 ? 0 : head - before; // memory that was never touched costs nothing
    }
    /// Whether `n` frames in a row are free or may leave.
    [[nodiscard]] bool may_make_room(std::uint32_t n) const noexcept {
        std::uint32_t begin = 0;
        for (std::uint32_t i = 0; i < count_; i = behind_run(i))
            if (frame_[i].away || (frame_[i].linked && !may_leave(i)))
                begin = behind_run(i);
            else if (behind_run(i) - begin >= n)
                return true;
        return false;
    }

    /// Called after any state bit was cleared: returns the frame to the free list once nothing holds it.
    void settle(std::uint32_t i) noexcept {
        if (frame_[i].idle()) push_free(i);
    }

    /// The unit that has to leave for one of `lane`: by the replacement policy's order the first that may and is not
    /// wanted, else the first that may, else `none`. A wanted unit that left would have to be read again in the same
    /// step.
    [[nodiscard]] std::uint32_t victim(std::uint32_t lane) noexcept {
        if constexpr (requires { replacement_.serve(lane); }) replacement_.serve(lane);
        const std::uint32_t unwanted =
            replacement_.victim([this](std::uint32_t h) { return !may_leave(h) || frame_[h].wanted; });
        if (unwanted != none) return unwanted;
        return replacement_.victim([this](std::uint32_t h) { return !may_leave(h); });
    }

    // -------------------------------------------------------------------------------------------------------
    // borrowed frames
    [[nodiscard]] bool may_borrow() const noexcept { return count_ > own_; }
    [[nodiscard]] std::uint32_t own() const noexcept { return own_; }
    [[nodiscard]] std::uint32_t borrowed() const noexcept { return count_ - own_ - away_; }
    /// Some tables had so many bytes to spare, and have so many now.
    void spare_changed(std::size_t before, std::size_t now) noexcept { spare_bytes_ += now - before; }
    /// What is borrowed is still spare when some tables have `now` instead of `before` bytes to spare.
    [[nodiscard]] bool may_keep_borrowed(std::size_t before, std::size_t now) const noexcept {
        return std::size_t{borrowed()} * page_bytes_ + before <= spare_bytes_ + now;
    }
    /// Brings in frames for all bytes that are spare, up to `frames` of them.
    void borrow(std::uint32_t frames = none) noexcept {
        const std::size_t most = std::min<std::size_t>(frames, spare_bytes_ / page_bytes_);
        if (borrowed() >= most || away_ == 0) return;
        for (std::uint32_t i = own_; i < count_ && borrowed() < most; ++i) {
            if (!frame_[i].away) continue;
            --away_;
            push_free(i);
        }
        resize_replacement();
    }
    /// All of them; nothing may hold one.
    void give_all_back() noexcept {
        if (borrowed() == 0) return;
        static_cast<void>(
            ::madvise(borrowed_memory_, std::size_t{count_ - own_} * page_bytes_, MADV_DONTNEED));
        for (std::uint32_t i = own_; i < count_; ++i) {
            assert(frame_[i].away || frame_[i].idle());
            frame_[i] = frame_record{};
            frame_[i].away = true;
        }
        away_ = count_ - own_;
        free_ = none, free_count_ = 0;
        for (std::uint32_t i = own_; i-- > 0;)
            if (frame_[i].idle()) push_free(i);
        resize_replacement();
    }

    /// The pool has its first `n` own frames from now on, fewer or more than before. Of those that go none is held but tails,
    /// which move_tail() takes elsewhere. `large`: memory of frames that come may be in large pages.
    void limit(std::uint32_t n, bool large = false) noexcept {
        assert(n <= own_);
        if (large && n > there_)
            reservation::in_large_pages(memory_away().first(std::size_t{n - there_} * page_bytes_));
        for (std::uint32_t i = 0; i < own_; ++i)
            if (frame_[i].away || frame_[i].idle()) {
                frame_[i] = frame_record{};
                frame_[i].away = i >= n;
            }
        there_ = n;
        memory_bytes_ = std::size_t{n} * page_bytes_;
        free_ = none, free_count_ = 0;
        gaps_ = {};
        search_from_ = 0;
        for (std::uint32_t i = count_, gap = 0; i-- > 0;) {
            const bool free = frame_[i].idle();
            if (free) push_free(i), ++gap;
            if (!free || i == 0) count_gap(std::exchange(gap, 0U), +1);
        }
        peak_ = in_use();
        resize_replacement();
    }
    /// Frees no frame, but none of the free borrowed ones is handed out until give_all_back(), which follows, and limit().
    void withhold_borrowed() noexcept {
        for (std::uint32_t i = own_; i < count_; ++i)
            if (frame_[i].idle()) frame_[i].away = true;
    }
    /// Lists the resident units in the order in which they would leave, and has the replacement policy forget them: until move(),
    /// in place of unsettled frames, of which there are none.
    void list_in_order() noexcept {
        assert(unsettled_count_ == 0);
        for (std::uint32_t h; (h = replacement_.victim([](std::uint32_t) { return false; })) != none;) {
            replacement_.remove(h);
            unsettled_[unsettled_count_++] = h;
        }
    }
    /// The pool has `own` frames of its own from now on, of which the first `there` are there, as many as now at least. Bytes and
    /// records of those that are there now have been moved, and nothing is borrowed. The replacement policy begins anew: it admits
    /// the units in the order of the list, and has neither counts nor ghosts of before. One that evicts the newest first
    /// turns the order round.
    void move(const typename Replacement::config& config, std::byte* memory, std::uint32_t own,
              std::uint32_t there, const tables& t, std::uint32_t unit_pages) noexcept {
        assert(borrowed() == 0 && there_ <= there && there <= own);
        memory_ = memory;
        count_ = own + (count_ - own_), own_ = own;
        attach(config, t, unit_pages);
        for (std::uint32_t i = there_; i < count_; ++i) frame_[i] = frame_record{};
        for (std::uint32_t i = there; i < count_; ++i) frame_[i].away = true;
        limit(there);
        for (std::uint32_t i = 0; i < unsettled_count_; ++i) {
            const std::uint32_t h = unsettled_[i];
            replacement_.admit(h, {pages_of(h), false, frame_[h].lane, frame_[h].unit});
        }
        unsettled_count_ = 0;
    }
    /// Of a resident unit, from its first frame on.
    [[nodiscard]] std::uint32_t pages_of(std::uint32_t head) const noexcept {
        std::uint32_t pages = 0;
        for (std::uint32_t f = head; f != none; f = frame_[f].next) pages += frame_[f].run;
        return pages;
    }
    /// What a tail holds is in frame `to` from now on, which has just been taken, and its own frame is away.
    void move_tail(std::uint32_t from, std::uint32_t to) noexcept {
        assert(frame_[from].dirty && !frame_[from].linked && !frame_[from].writing && from >= there_);
        std::memcpy(bytes(to), bytes(from), page_bytes_);
        tails_[frame_[from].tail].frame = to;
        frame_[to] = std::exchange(frame_[from], frame_record{});
        frame_[from].away = true;
    }
    /// Of its own frames that are away.
    [[nodiscard]] std::span<std::byte> memory_away() const noexcept {
        return {memory_ + std::size_t{there_} * page_bytes_, std::size_t{own_ - there_} * page_bytes_};
    }
    [[nodiscard]] std::uint32_t there() const noexcept { return there_; }

    // -------------------------------------------------------------------------------------------------------
    // tails
    [[nodiscard]] std::uint32_t tail_count() const noexcept { return tail_count_; }
    [[nodiscard]] std::uint32_t tail_quota() const noexcept { return tail_quota_; }
    /// The frame becomes a tail, one of at most tail_quota(), or has received one more entry.
    void mark_dirty(std::uint32_t i) noexcept {
        if (frame_[i].dirty) {
            tails_[frame_[i].tail].stamp = ++clock_;
            return;
        }
        assert(tail_count_ < tails_.size());
        note_draining(i, -1);
        frame_[i].dirty = true;
        frame_[i].tail = tail_count_;
        tails_[tail_count_++] = {i, ++clock_};
    }
    void clear_dirty(std::uint32_t i) noexcept {
        if (!frame_[i].dirty) return;
        frame_[i].dirty = false;
        note_draining(i, +1);
        const std::uint32_t gap = std::exchange(frame_[i].tail, none), last = --tail_count_;
        if (gap == last) return; // else the last tail moves up
        tails_[gap] = tails_[last];
        frame_[tails_[gap].frame].tail = gap;
        if (running_bytes_ > 0) std::memcpy(running_of(gap), running_of(last), running_bytes_);
    }
    /// The tail that received no entry for the longest time, other than `except`.
    [[nodiscard]] std::uint32_t oldest_tail(std::uint32_t except) const noexcept {
        const tail_record* best = nullptr;
        for (const tail_record& t : tails())
            if (t.frame != except && (best == nullptr || t.stamp < best->stamp)) best = &t;
        return best == nullptr ? none : best->frame;
    }
    [[nodiscard]] std::span<const tail_record> tails() const noexcept { return tails_.first(tail_count_); }
    /// running_bytes beside a tail, aligned to 64: what is known exactly of the unit that grows in it.
    [[nodiscard]] std::byte* running(std::uint32_t tail) noexcept {
        assert(frame_[tail].dirty);
        return running_of(frame_[tail].tail);
    }

    // ------------------------------------------------------------------------------------------------
    // who is resident, to save and to load it
    [[nodiscard]] std::uint32_t clock() const noexcept { return clock_; }
    [[nodiscard]] std::size_t running_bytes() const noexcept { return running_bytes_; }
    /// The bytes beside tail number t.
    [[nodiscard]] std::span<std::byte> running_at(std::uint32_t t) const noexcept {
        return running_.subspan(t * running_bytes_, running_bytes_);
    }
    /// The state of the replacement policy.
    [[nodiscard]] std::span<std::byte> replacement_block() const noexcept { return replacement_block_; }
    /// A pool that holds nothing holds these frames from now on; `record` has one for each frame. Bytes, what is beside tails and
    /// the state of the replacement policy come apart.
    void hold(std::span<const frame_record> record, std::span<const tail_record> tails,
              const pool_counts& counts) noexcept {
        free_ = none, free_count_ = 0;
        for (std::uint32_t i = count_; i-- > 0;) {
            assert(frame_[i].idle() || frame_[i].away);
            if (frame_[i].away) continue;
            if (record[i].idle())
                push_free(i);
            else
                frame_[i] = record[i];
        }
        std::copy(tails.begin(), tails.end(), tails_.begin());
        tail_count_ = static_cast<std::uint32_t>(tails.size());
        clock_ = counts.clock;
        note_used(in_use());
    }

    // ------------------------------------------------------------------------------------------------
    // pending writes
    void write_started(std::uint32_t i) noexcept {
        if (!frame_[i].writing && !frame_[i].failed) unsettled_[unsettled_count_++] = i;
        frame_[i].failed = false;
        frame_[i].writing = true;
        note_draining(i, +1);
    }
    void write_finished(std::uint32_t i, bool ok) noexcept {
        note_draining(i, -1);
        frame_[i].writing = false;
        frame_[i].failed = !ok;
        if (!ok) return;
        for (std::uint32_t u = 0; u < unsettled_count_; ++u)
            if (unsettled_[u] == i) {
                unsettled_[u] = unsettled_[--unsettled_count_];
                break;
            }
        settle(i);
    }
    /// Frames that are being written or could not be: for pages among them DRAM holds the truth.
    [[nodiscard]] std::span<const std::uint32_t> unsettled() const noexcept {
        return unsettled_.first(unsettled_count_);
    }

    void link(std::uint32_t i) noexcept {
        note_draining(i, -1);
        frame_[i].linked = true;
    }
    void unlink(std::uint32_t i) noexcept {
        frame_[i].linked = false;
        frame_[i].admitted = false;
        frame_[i].wanted = false;
        note_draining(i, +1);
        settle(i);
    }

  private:
    /// A unit that is nothing but a tail would free no frame.
    [[nodiscard]] bool may_leave(std::uint32_t head) const noexcept {
        const frame_record& f = frame_[head];
        return f.pins == 0 && (!f.dirty || f.next != none);
    }

    /// Where a search for a run goes on: not among own frames that are away, and from the front again at the end.
    [[nodiscard]] std::uint32_t place_behind(std::uint32_t i) const noexcept {
        if (i == there_) i = own_;
        return i < count_ ? i : 0;
    }
    /// Behind a frame, or behind the run that it heads.
    [[nodiscard]] std::uint32_t behind_run(std::uint32_t i) const noexcept {
        return i + (frame_[i].linked ? frame_[i].run : 1);
    }
    /// Free frames from `i` on and before it, counted no further than the longest run.
    [[nodiscard]] std::uint32_t free_from(std::uint32_t i) const noexcept {
        std::uint32_t n = 0;
        while (n < longest_run_ && i + n < count_ && frame_[i + n].idle()) ++n;
        return n;
    }
    [[nodiscard]] std::uint32_t free_before(std::uint32_t i) const noexcept {
        std::uint32_t n = 0;
        while (n < longest_run_ && n < i && frame_[i - n - 1].idle()) ++n;
        return n;
    }
    /// A gap of `frames` free frames has appeared or gone.
    void count_gap(std::uint32_t frames, int change) noexcept {
        if (frames > 0) gaps_[std::min(frames, longest_run_)] += static_cast<std::uint32_t>(change);
    }
    std::uint32_t take_run(std::uint32_t first, std::uint32_t n) noexcept {
        const std::uint32_t before = free_before(first), after = free_from(first + n);
        count_gap(before + n + after, -1), count_gap(before, +1), count_gap(after, +1);
        for (std::uint32_t i = 0; i < n; ++i) {
            frame_[first + i] = frame_record{};
            frame_[first + i].behind = i > 0;
        }
        frame_[first].run = static_cast<std::uint16_t>(n);
        frame_[first].linked = true;
        free_count_ -= n;
        note_used(first + n);
        search_from_ = place_behind(first + n);
        return first;
    }

    /// Policies that divide the frames are told how many there are.
    void resize_replacement() noexcept {
        if constexpr (requires { replacement_.resize(count_); }) replacement_.resize(there_ + borrowed());
    }

    void attach(const typename Replacement::config& config, const tables& t,
                std::uint32_t unit_pages) noexcept {
        frame_ = t.frames;
        unsettled_ = t.unsettled;
        tails_ = t.tails;
        running_ = t.running;
        replacement_block_ = t.replacement;
        replacement_ = replacement_state(config, count_, unit_pages, t.replacement);
    }
    static tables take(carver& c, std::uint32_t frames, std::uint32_t unit_pages, std::uint32_t tails,
                       std::size_t running_bytes) noexcept {
        tables t;
        tails = std::min(tails, frames);
        t.frames = c.take<frame_record>(frames);
        t.unsettled = c.take<std::uint32_t>(frames);
        t.tails = c.take<tail_record>(tails);
        t.running = c.take<std::byte>(tails * running_bytes);
        t.replacement = c.take<std::byte>(replacement_state::bytes(frames, unit_pages));
        return t;
    }
    [[nodiscard]] std::byte* running_of(std::uint32_t t) noexcept { return &running_[t * running_bytes_]; }
    void push_free(std::uint32_t i) noexcept {
        frame_[i] = frame_record{};
        frame_[i].next = free_;
        free_ = i;
        ++free_count_;
    }
    /// Before a state bit is set, and after one is cleared (after `writing` is set, before it is cleared).
    void note_draining(std::uint32_t i, int change) noexcept {
        const frame_record& f = frame_[i];
        if (f.writing && !f.linked && !f.dirty) draining_ = change > 0 ? draining_ + 1 : draining_ - 1;
    }

    std::byte* memory_ = nullptr;
    std::size_t memory_bytes_ = 0;
    std::uint32_t page_bytes_ = 0;
    std::uint32_t own_ = 0;
    std::uint32_t there_ = 0; ///< of its own frames
    std::uint32_t count_ = 0; ///< with borrowed frames, those that are away included
    std::byte* borrowed_memory_ = nullptr;
    std::uint32_t away_ = 0;      ///< of the borrowed ones
    std::size_t spare_bytes_ = 0; ///< of tables, from which frames are borrowed
    std::uint32_t longest_run_ = 0;
    std::uint32_t free_ = none;
    std::uint32_t free_count_ = 0;
    std::uint32_t peak_ = 0;
    std::uint32_t draining_ = 0;
    std::uint32_t search_from_ = 0;                 ///< where pop_run() begins: never inside a run
    std::array<std::uint32_t, max_run + 1> gaps_{}; ///< how many there are of so many free frames, or of more
    std::uint32_t clock_ = 0, steps_ = 0;
    std::uint32_t tail_quota_ = 0;
    std::uint32_t tail_count_ = 0;
    std::uint32_t unsettled_count_ = 0;
    std::size_t running_bytes_ = 0; ///< a multiple of 64
    std::span<frame_record> frame_;
    std::span<std::uint32_t> unsettled_;
    std::span<tail_record> tails_;
    std::span<std::byte> running_; ///< of the tails, in their order
    std::span<std::byte> replacement_block_;
    replacement_state replacement_{};
};

}} // namespace kvtl::v0
