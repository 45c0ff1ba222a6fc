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
        const page_format& format = store_->format();
        const std::uint32_t stored = l.state().stored, end = stored + count;
        // The pages of new and changed rows come last, all at once: what fails before leaves every record whole.
        const std::uint32_t first_page = from / format.rows, changed = format.pages_for(at + count),
                            pages = count > 0 ? format.pages_for(end) : changed;
        if (end > l.sizes().chain_entries || !store_->extend_stream(l, pages - 1)) return false;
        for (std::uint32_t i = first_page; i < format.pages_for(stored); ++i)
            if (store_->being_read(store_->stream_page(l, i))) return false;
        store_->settle_all_writes(frames);
        if (store_->has_failed_writes(frames)) return false;
        const std::uint32_t spread =
            count / format.rows + 2; // pages that rows come from, beside those they go to
        for (std::uint32_t done = pages; done > first_page;) {
            const bool last = done <= changed;
            const std::uint32_t most =
                last ? done - first_page : std::min(some_pages, done - changed) + spread;
            const std::uint32_t taken = take(frames, lane_id, most);
            const std::uint32_t begin = last ? first_page : taken > spread ? done - (taken - spread) : done;
            // The lowest row that moves into these pages.
            const std::uint32_t row_of_begin = begin * format.rows;
            const std::uint32_t low =
                row_of_begin >= at + count ? row_of_begin - count : std::min(row_of_begin, at);
            const std::uint32_t source = low / format.rows;
            if (begin == done || done - source > taken ||
                !read(l, frames, source, std::min(done, format.pages_for(stored)))) {
                give_back(frames, 0, taken);
                if (done < pages) count_moved(shift(l, done * format.rows - count, count));
                return false;
            }
            const auto page = [&](std::uint32_t r) { return frames.bytes(frame_[r / format.rows - source]); };
            const std::uint32_t top = count > 0 ? std::min(end, done * format.rows) : at;
            for (std::uint32_t r = top; r-- > std::max(from, row_of_begin);) {
                entry_record e;
                if (r >= at + count)
                    e = format.entry(page(r - count), (r - count) % format.rows);
                else
                    e = row(r);
                if (e.bytes.entry() > 0) format.put(page(r), r % format.rows, e);
            }
            if (done * format.rows > end) format.pad(page(end - 1), end - (done - 1) * format.rows);
            for (std::uint32_t i = begin; i < done; ++i) {
                frame_record& f = frames[frame_[i - source]];
                f.page = store_->stream_page(l, i);
                f.lane = lane_id;
                store_->queue_write(frames, frame_[i - source]);
            }
            give_back(frames, 0, begin - source);
            give_back(frames, done - source, taken);
            done = begin;
        }
        count_moved(shift(l, at, count));
        return true;
    }

  private:
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
