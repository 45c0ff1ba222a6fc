// A lane's stream in which units lie one behind the other (layout/packed.hpp): rows are put in, and all behind them
// move, on storage.
//
// Pages are rewritten in place from the stream's end, a few at a time, so that at every moment each entry is in one
// place that the tables can name.
//
// Cost:   every page from the first changed row to the stream's end is read once and written once (a few pages are read
//         twice); writes that are in the air are waited for.
// Memory: the frames of some pages.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/unit_store.hpp>

namespace kvtl { inline namespace v0 {

template <class Types> class packed_stream {
  public:
    using store = unit_store<Types>;
    using lane = typename Types::lane;
    using pool = typename Types::pool;

    /// Pages that are rewritten at once, as far as there are frames.
    static constexpr std::uint32_t some_pages = 8;

    /// Frames for splices of up to `rows` rows, new or changed.
    [[nodiscard]] static constexpr std::uint32_t frames_for(std::uint32_t rows,
                                                            std::uint32_t page_rows) noexcept {
        return some_pages + rows / page_rows + 2;
    }

    packed_stream() = default;
    packed_stream(store& s, std::span<std::uint32_t> frames) noexcept : store_(&s), frame_(frames) {}

    /// Puts `count` rows before row `at` of a lane's stream, and changes rows of [from, at), which belong to the unit
    /// that ends there. row(r) is the record of row r in [from, at + count), or one of no bytes where it stays as it
    /// is. False when frames, storage or the device do not allow it now, or rows that would move are being read:
    /// nothing has changed then but that a read that failed on the way may leave a gap.
    template <class Row>
    [[nodiscard]] bool splice(std::uint32_t lane_id, std::uint32_t from, std::uint32_t at,
                              std::uint32_t count, Row&& row) noexcept {
        const lane l = store_->at(lane_id);
        pool& frames = store_->pool_of(lane_id);
        const std::uint32_t page_rows = store_->format().rows, stored = l.state().stored;
        const change c{from, at, count, stored + count};
        // The pages of new and changed rows come last, all at once: what fails before leaves every record whole.
        const std::uint32_t old_pages = store_->format().pages_for(stored), first = from / page_rows,
                            changed = store_->format().pages_for(at + count),
                            pages = count > 0 ? store_->format().pages_for(c.end) : changed;
        if (c.end > l.sizes().chain_entries || !store_->extend_stream(l, pages - 1)) return false;
        for (std::uint32_t i = first; i < old_pages; ++i)
            if (store_->being_read(store_->stream_page(l, i))) return false;
        store_->settle_all_writes(frames);
        if (store_->has_failed_writes(frames)) return false;
        const std::uint32_t before =
            count / page_rows + 2; // pages that rows come from, before those they go to
        for (std::uint32_t end = pages; end > first;) {
            const bool last = end <= changed;
            const std::uint32_t most = last ? end - first : std::min(some_pages, end - changed) + before;
            const std::uint32_t taken = take(frames, lane_id, most);
            page_range p{.begin = last ? first : end - (taken > before ? taken - before : 0), .end = end};
            p.source = c.origin(p.begin * page_rows) / page_rows;
            if (p.begin == end || end - p.source > taken ||
                !read(l, frames, p.source, std::min(end, old_pages))) {
                give_back(frames, 0, taken);
                if (end < pages) count_moved(shift(l, end * page_rows - count, count));
                return false;
            }
            move_rows(frames, p, c, row);
            for (std::uint32_t i = p.begin; i < end; ++i) {
                frame_record& f = frames[frame_[i - p.source]];
                f.page = store_->stream_page(l, i);
                f.lane = lane_id;
                store_->queue_write(frames, frame_[i - p.source]);
            }
            give_back(frames, 0, p.begin - p.source);
            give_back(frames, end - p.source, taken);
            end = p.begin;
        }
        count_moved(shift(l, at, count));
        return true;
    }

  private:
    /// What a splice does, in rows. `end`: of the stream when it is done.
    struct change {
        std::uint32_t from, at, count, end;
        /// The lowest row that goes to rows from `row` on.
        [[nodiscard]] std::uint32_t origin(std::uint32_t row) const noexcept {
            return row >= at + count ? row - count : std::min(row, at);
        }
    };
    /// Pages [begin, end) of the stream are written anew, from [source, end), which the frames hold.
    struct page_range {
        std::uint32_t begin, end, source = 0;
    };

    /// From the last row on, as none may be overwritten before it has moved.
    template <class Row>
    void move_rows(pool& frames, const page_range& p, const change& c, Row&& row) noexcept {
        const page_format& format = store_->format();
        const auto page = [&](std::uint32_t r) { return frames.bytes(frame_[r / format.rows - p.source]); };
        const std::uint32_t top = c.count > 0 ? std::min(c.end, p.end * format.rows) : c.at;
        for (std::uint32_t r = top; r-- > std::max(c.from, p.begin * format.rows);) {
            const std::uint32_t o = r - c.count;
            const entry_record e = r >= c.at + c.count ? format.entry(page(o), o % format.rows) : row(r);
            if (e.bytes.entry() > 0) format.put(page(r), r % format.rows, e);
        }
        if (p.end * format.rows > c.end) format.pad(page(c.end - 1), c.end - (p.end - 1) * format.rows);
    }

    [[nodiscard]] std::uint32_t take(pool& frames, std::uint32_t lane_id, std::uint32_t most) noexcept {
        std::uint32_t n = 0;
        while (n < most && (frame_[n] = store_->acquire(frames, lane_id)) != none) ++n;
        return n;
    }
    void give_back(pool& frames, std::uint32_t begin, std::uint32_t end) noexcept {
        for (std::uint32_t i = begin; i < end; ++i) frames.settle(frame_[i]);
    }

    /// Reads pages [begin, end) of the stream into the frames, from the first on.
    [[nodiscard]] bool read(const lane& l, pool& frames, std::uint32_t begin, std::uint32_t end) noexcept {
        for (std::uint32_t i = begin; i < end;) {
            const std::uint32_t id = store_->io().free_flight(0, store::step_flights);
            flight& f = store_->io().at(id);
            for (; i < end && f.room(1); ++i) f.add(store_->stream_page(l, i), frame_[i - begin], none);
            if (!store_->submit_reads(id, frames)) return false;
            store_->io().drain(id);
            if (!f.error().ok()) return false;
        }
        return true;
    }

    /// Rows from `from` on are `by` rows further back now. Returns the entries among them.
    [[nodiscard]] std::uint32_t shift(const lane& l, std::uint32_t from, std::uint32_t by) noexcept {
        lane_state& s = l.state();
        const auto moved = [from, by](std::uint32_t e) { return e != none && e >= from ? e + by : e; };
        for (std::uint32_t e = s.stored; e-- > from;) l.next_member(e + by) = moved(l.next_member(e));
        for (std::uint32_t e = 0; e < from; ++e) l.next_member(e) = moved(l.next_member(e));
        s.stored += by;
        std::uint32_t entries = 0;
        for (unit_record& u : l.units()) {
            if (u.entries == 0) continue;
            if (u.members() >= from) entries += u.entries;
            u.members() = moved(u.members());
            u.last_member() = moved(u.last_member());
        }
        return entries;
    }
    void count_moved(std::uint32_t entries) noexcept {
        const std::size_t bytes = store_->format().bytes_of(entries);
        store_->stats().bytes_moved_by_updates += bytes;
        store_->stats().bytes_moved_by_appends += bytes;
    }

    store* store_ = nullptr;
    std::span<std::uint32_t> frame_; ///< (frames_for(rows))
};

}} // namespace kvtl::v0
