// Transfers between frames and storage: plans of pages that become few large requests, checked when they
// land.
//
// An *io_batch* is one batch of page transfers in one direction. submit_reads() sorts its pages by place, joins
// neighbours (and reads through gaps that cost less than another operation), and hands all requests to the
// device in one submission. Every page has a checksum, made when it is written and verified when it is read.
//
// The shards of a cache share one file: shard s owns every shards-th step, so that no two shards ever agree on
// anything while they work. A step has what a shard can need, and 64 MiB at most.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/frame_pool.hpp>
#include <kvtl/core/thread_sanitizer.hpp>
#include <kvtl/io/any_io.hpp>
#include <kvtl/simd/checksum.hpp>
#include <kvtl/slots/io.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace kvtl { inline namespace v0 {

/// One unit that a step works on.
struct work_item : chosen_unit { ///< mask 0: only brought in
    std::uint32_t lane = 0;      ///< index among the lanes of this layer and shard
    std::uint32_t pending = 0;   ///< pages that have not landed
    bool done = false;
    bool loads = false; ///< some of its pages come from storage
};

/// Where the pages of a shard lie in the file.
struct file_map {
    std::uint64_t data_offset = 0; ///< bytes before the first page (superblock)
    std::uint32_t page_bytes = 4096;
    std::uint32_t step_pages = 0; ///< pages per step
    std::uint32_t shard = 0;
    std::uint32_t shards = 1;
    std::uint32_t front = none;    ///< pages from this number on lie before all others,
    std::uint32_t front_steps = 0; ///< in so many steps

    static constexpr std::uint64_t most_step_bytes = std::uint64_t{64} << 20;
    /// Pages of a step for a shard that is expected to need `pages`: whole requests, so that few are cut in two.
    [[nodiscard]] static constexpr std::uint32_t step_pages_for(std::uint32_t pages,
                                                                std::uint32_t page_bytes) noexcept {
        constexpr std::uint64_t whole = 128; // io_batch::max_request_pages
        const std::uint64_t most = std::max<std::uint64_t>(1, most_step_bytes / page_bytes),
                            wanted = std::max<std::uint64_t>(1, (pages + whole - 1) / whole) * whole;
        return static_cast<std::uint32_t>(std::min(most, wanted));
    }

    [[nodiscard]] std::uint64_t offset(std::uint32_t page) const noexcept {
        const std::uint32_t in_part = page >= front ? page - front : page;
        return data_offset + (std::uint64_t{step_of(page)} * shards + shard) * step_pages * page_bytes +
               std::uint64_t{in_part % step_pages} * page_bytes;
    }
    /// Pages of one step lie side by side as their numbers do.
    [[nodiscard]] bool same_step(std::uint32_t a, std::uint32_t b) const noexcept {
        return step_of(a) == step_of(b);
    }

  private:
    [[nodiscard]] std::uint32_t step_of(std::uint32_t page) const noexcept {
        return page >= front ? (page - front) / step_pages : front_steps + page / step_pages;
    }
};

struct page_transfer {
    std::uint32_t page = none;
    std::uint32_t frame = none;
    std::uint32_t item = none; ///< reads: the work item that waits for it, or none
    bool held = false; ///< reads: the frame has the page already, and is the io_batch's until that ends
};

/// Which frame carries a page, for batches whose pages are copied out of their frames: a hash table with linear probing.
class page_carriers {
  public:
    page_carriers() = default;
    page_carriers(carver& c, std::uint32_t max_pages) noexcept
        : slot_(c.take<carrier>(max_pages == 0 ? 0 : std::bit_ceil(max_pages + max_pages / 2 + 1))) {}

    /// The frame, or none.
    [[nodiscard]] std::uint32_t frame_of(std::uint32_t page) const noexcept {
        return slot_[find(page)].frame;
    }
    /// The frame had the page before any read.
    [[nodiscard]] bool holds(std::uint32_t page) const noexcept { return slot_[find(page)].holds; }
    void add(std::uint32_t page, std::uint32_t frame, bool holds) noexcept {
        slot_[find(page)] = {page, frame, holds};
        ++count_;
    }
    /// The page that was added last.
    void take_back(std::uint32_t page) noexcept {
        slot_[find(page)] = {};
        --count_;
    }
    void clear() noexcept {
        if (count_ > 0) std::ranges::fill(slot_, carrier{});
        count_ = 0;
    }

  private:
    struct carrier {
        std::uint32_t page = none, frame = none;
        bool holds = false;
    };
    /// Where a page is, or where it would be.
    [[nodiscard]] std::size_t find(std::uint32_t page) const noexcept {
        const std::size_t mask = slot_.size() - 1;
        std::size_t at = (page * 0x9E3779B1U) >> 7 & mask; // Fibonacci hashing: runs of pages spread
        while (slot_[at].page != page && slot_[at].page != none) at = (at + 1) & mask;
        return at;
    }
    std::span<carrier> slot_;
    std::uint32_t count_ = 0;
};

class io_batch {
  public:
    static constexpr std::uint32_t max_request_pages = 128;

    io_batch() = default;
    /// carries: pages are copied out of their frames (carriers()).
    io_batch(carver& c, std::uint32_t max_pages, std::uint32_t max_items, bool carries = false) noexcept
        : carriers_(c, carries ? max_pages : 0), page_(c.take<page_transfer>(max_pages)),
          request_(c.take<io_request>(max_pages)), begin_(c.take<std::uint32_t>(max_pages + 1)),
          slice_(c.take<::iovec>(2 * std::size_t{max_pages})), item_(c.take<work_item>(max_items)),
          capacity_(max_pages), item_capacity_(max_items) {}

    void clear() noexcept {
        carriers_.clear();
        pages_ = requests_ = items_ = 0;
        error_ = {};
    }
    /// So many pages at most from now on, as far as there is room for them. Nothing is under way.
    void limit(std::uint32_t pages) noexcept {
        capacity_ = std::min(pages, static_cast<std::uint32_t>(page_.size()));
    }
    [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; } ///< pages
    /// True when `pages` more pages fit.
    [[nodiscard]] bool room(std::uint32_t pages) const noexcept { return pages_ + pages <= capacity_; }
    void add(std::uint32_t page, std::uint32_t frame, std::uint32_t item, bool held = false) noexcept {
        page_[pages_++] = {page, frame, item, held};
    }

    void truncate(std::uint32_t pages) noexcept { pages_ = pages; }
    [[nodiscard]] bool holds_before(std::uint32_t page, std::size_t end) const noexcept {
        const auto before = page_.first(end);
        return std::ranges::find(before, page, &page_transfer::page) != before.end();
    }
    [[nodiscard]] page_carriers& carriers() noexcept { return carriers_; }

    [[nodiscard]] bool item_room() const noexcept { return items_ < item_capacity_; }
    std::uint32_t add_item(const work_item& w) noexcept {
        item_[items_] = w;
        return items_++;
    }
    void drop_item() noexcept { --items_; }
    [[nodiscard]] std::span<work_item> items() noexcept { return item_.first(items_); }
    [[nodiscard]] std::span<const page_transfer> pages() const noexcept { return page_.first(pages_); }
    [[nodiscard]] std::uint32_t requests() const noexcept { return requests_; }
    [[nodiscard]] bool in_flight() const noexcept { return pending_ > 0; }
    [[nodiscard]] const status& error() const noexcept { return error_; }

  private:
    template <class> friend class transfers;

    /// In the order of their places; those that need no transfer come last.
    void sort_pages() noexcept {
        const auto pages = page_.first(pages_);
        std::sort(pages.begin(), pages.end(), [](const page_transfer& a, const page_transfer& b) {
            if (a.held != b.held) return b.held;
            return a.page != b.page ? a.page < b.page : a.item < b.item;
        });
        moved_ = pages_;
        while (moved_ > 0 && page_[moved_ - 1].held) --moved_;
    }

    page_carriers carriers_;
    std::span<page_transfer> page_;
    std::span<io_request> request_;
    std::span<std::uint32_t> begin_; ///< request r carries pages [begin_[r], begin_[r+1])
    std::span<::iovec> slice_;
    std::span<work_item> item_;
    std::uint32_t capacity_ = 0, item_capacity_ = 0;
    std::uint32_t pages_ = 0, requests_ = 0, items_ = 0;
    std::uint32_t moved_ = 0;   ///< of pages_, those that are really transferred
    std::uint32_t pending_ = 0; ///< requests with the device
    void* pool_ = nullptr;      ///< whose frames these are
    bool raw_ = false;          ///< the pool's arena is used as plain memory, frame states do not change
    bool writes_ = false;
    status error_;
};

/// One shard's traffic with the device.
template <class Pool> class transfers {
  public:
    transfers() = default;
    transfers(any_io::queue& queue, const file_map& map, std::span<std::uint32_t> checksum,
              std::span<std::byte> trash, std::uint32_t gap_pages, std::span<io_batch> io_batches,
              std::uint32_t timeout_ms) noexcept
        : queue_(&queue), map_(map), checksum_(checksum), trash_(trash), gap_pages_(gap_pages),
          io_batches_(io_batches), timeout_ms_(timeout_ms) {
        written_but_never_read(trash);
    }

    [[nodiscard]] io_batch& at(std::uint32_t i) noexcept { return io_batches_[i]; }
    [[nodiscard]] std::uint32_t& checksum(std::uint32_t page) noexcept { return checksum_[page]; }
    [[nodiscard]] const file_map& map() const noexcept { return map_; }
    [[nodiscard]] io_counters counters() const noexcept { return queue_->counters(); }

    /// Reads every page of the io_batch into its frame. A page wanted by several items is read once, into the
    /// frame of the first; `frame == none` pages must not occur.
    [[nodiscard]] status submit_reads(std::uint32_t id, Pool& pool, bool frames_are_memory = false) noexcept {
        return submit(id, pool, false, frames_are_memory);
    }
    /// Writes every page of the io_batch from its frame (or arena page), which must not change until it has
    /// landed. The caller has told the pool that these writes start.
    [[nodiscard]] status submit_writes(std::uint32_t id, Pool& pool,
                                       bool frames_are_memory = false) noexcept {
        io_batch& f = io_batches_[id];
        for (const page_transfer& t : f.pages())
            checksum_[t.page] = simd::page_checksum(pool.bytes(t.frame), map_.page_bytes);
        return submit(id, pool, true, frames_are_memory);
    }

    /// Handles completions; with `wait` blocks until at least one has come (if any is outstanding).
    void poll(bool wait) noexcept {
        std::array<io_completion, 32> done;
        std::size_t n = 0;
        do {
            n = queue_->reap(done, wait);
            wait = false;
            for (std::size_t i = 0; i < n; ++i) landed(done[i]);
        } while (n == done.size());
    }
    void drain(std::uint32_t id) noexcept {
        while (io_batches_[id].pending_ > 0) poll(true);
    }
    /// Whether these are the bytes that a page had when it was written.
    [[nodiscard]] bool matches(std::uint32_t page, const std::byte* bytes) const noexcept {
        return simd::page_checksum(bytes, map_.page_bytes) == checksum_[page];
    }
    [[nodiscard]] bool idle() const noexcept { return queue_->in_flight() == 0; }
    /// Transfers were given up. Frames may still be written to, so that nothing here can be used any more.
    [[nodiscard]] bool gave_up() const noexcept { return gave_up_; }
    /// Waits until nothing is under way. False: something was given up, and its memory may still be written to.
    [[nodiscard]] bool land_all() noexcept {
        if (queue_ == nullptr) return true;
        while (!idle()) poll(true);
        return !gave_up_;
    }
    [[nodiscard]] status no_answer() const noexcept {
        return status::failure(errc::io_error,
                               "the device did not answer within io_timeout_ms = %u; valid: close the cache",
                               timeout_ms_);
    }

    /// An io_batch that is not in the air among [first, first + count); waits when all are.
    [[nodiscard]] std::uint32_t free_io_batch(std::uint32_t first, std::uint32_t count) noexcept {
        for (;;) {
            for (std::uint32_t i = first; i < first + count; ++i)
                if (!io_batches_[i].in_flight()) {
                    io_batches_[i].clear();
                    return i;
                }
            poll(true);
        }
    }

  private:
    status submit(std::uint32_t id, Pool& pool, bool writes, bool frames_are_memory) noexcept {
        io_batch& f = io_batches_[id];
        f.writes_ = writes;
        f.raw_ = frames_are_memory;
        f.pool_ = &pool;
        f.requests_ = 0;
        f.sort_pages();
        if (f.moved_ == 0) return {};
        std::uint32_t slices = 0;
        for (std::uint32_t begin = 0; begin < f.moved_;) begin = make_request(id, pool, begin, slices);
        f.begin_[f.requests_] = f.moved_;
        f.pending_ = f.requests_;
        if (status s = gave_up_ ? no_answer() : queue_->submit(f.request_.first(f.requests_)); !s) {
            f.pending_ = 0;
            f.error_ = s;
            if (writes)
                for (const page_transfer& t : f.pages())
                    if (!f.raw_) pool.write_finished(t.frame, false);
            return s;
        }
        return {};
    }

    std::uint32_t make_request(std::uint32_t id, Pool& pool, std::uint32_t begin,
                               std::uint32_t& slices) noexcept {
        io_batch& f = io_batches_[id];
        const std::uint32_t first = slices;
        const auto piece = [&](std::byte* at) {
            ::iovec& last = f.slice_[slices == first ? slices : slices - 1];
            if (slices != first && static_cast<std::byte*>(last.iov_base) + last.iov_len == at &&
                at != trash_.data()) {
                last.iov_len += map_.page_bytes;
            } else {
                f.slice_[slices++] = {at, map_.page_bytes};
            }
        };
        std::uint32_t end = begin, page = f.page_[begin].page;
        piece(pool.bytes(f.page_[end++].frame));
        for (; end < f.moved_; ++end) {
            const std::uint32_t next = f.page_[end].page;
            if (next == page) continue; // one more item that waits for the same page
            const std::uint32_t gap = next - page - 1;
            if (gap > (f.writes_ ? 0 : gap_pages_) ||
                next - f.page_[begin].page >= io_batch::max_request_pages || !map_.same_step(page, next) ||
                slices + gap + 1 > f.slice_.size() - (f.moved_ - end))
                break;
            for (std::uint32_t g = 0; g < gap; ++g) piece(trash_.data());
            piece(pool.bytes(f.page_[end].frame));
            page = next;
        }
        f.begin_[f.requests_] = begin;
        f.request_[f.requests_] = {f.writes_ ? io_verb::write : io_verb::read, slices - first,
                                   &f.slice_[first], map_.offset(f.page_[begin].page),
                                   std::uint64_t{id} << 32 | f.requests_};
        ++f.requests_;
        return end;
    }

    void landed(const io_completion& c) noexcept {
        io_batch& f = io_batches_[c.tag >> 32];
        const auto request = static_cast<std::uint32_t>(c.tag);
        --f.pending_;
        const auto pages = f.page_.subspan(f.begin_[request], f.begin_[request + 1] - f.begin_[request]);
        if (c.error == io_no_answer) {
            gave_up_ = true;
            f.error_ = no_answer();
        } else if (c.error != 0 && f.error_.ok())
            f.error_ = status::failure(errc::io_error, "%s of %zu pages at offset %llu failed: %s (errno %d)",
                                       f.writes_ ? "write" : "read", pages.size(),
                                       static_cast<unsigned long long>(map_.offset(pages[0].page)),
                                       std::strerror(c.error), c.error);
        Pool& pool = *static_cast<Pool*>(f.pool_);
        if (f.writes_) {
            if (!f.raw_)
                for (const page_transfer& t : pages) pool.write_finished(t.frame, c.error == 0);
            return;
        }
        std::uint32_t verified = none;
        for (const page_transfer& t : pages) {
            if (c.error == 0 && t.page != verified) {
                verified = t.page;
                if (!matches(t.page, pool.bytes(t.frame)) && f.error_.ok())
                    f.error_ = status::failure(errc::corrupt,
                                               "the page at offset %llu came back with another checksum",
                                               static_cast<unsigned long long>(map_.offset(t.page)));
            }
            if (t.item != none) --f.item_[t.item].pending;
        }
    }

    any_io::queue* queue_ = nullptr;
    file_map map_{};
    std::span<std::uint32_t> checksum_;
    std::span<std::byte> trash_;
    std::uint32_t gap_pages_ = 0;
    std::span<io_batch> io_batches_;
    std::uint32_t timeout_ms_ = 0;
    bool gave_up_ = false;
};

}} // namespace kvtl::v0
