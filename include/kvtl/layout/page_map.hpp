// The used pages of a shard's part of the file: a bitmap with next-fit search.
//
// Cost: allocate() scans 64 pages per step, from the end of the last search. release() of the highest pages
//       scans the free pages below them, each once. Memory: one bit per page, and 16 bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/state_block.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

class page_map {
    struct alignas(std::uint64_t) counters { // bits follow
        std::uint32_t used = 0;
        std::uint32_t cursor = 0; ///< where the next search begins
        std::uint32_t top = 0;
    };

  public:
    page_map() = default;

    [[nodiscard]] static std::size_t bytes(std::uint32_t pages) noexcept {
        return sizeof(counters) + words(pages) * sizeof(std::uint64_t);
    }

    /// `memory` holds bytes(pages) bytes, aligned for uint64_t, and outlives the map.
    page_map(std::uint32_t pages, std::span<std::byte> memory,
             state_block holds = state_block::fresh) noexcept
        : pages_(pages) {
        block_parts parts(memory, holds);
        count_ = parts.take<counters>(1);
        word_ = parts.take<std::uint64_t>(words(pages));
    }

    /// Takes `count` adjacent pages and returns the first, or `none` when there is no such run.
    [[nodiscard]] std::uint32_t allocate(std::uint32_t count) noexcept {
        std::uint32_t first = find(count_->cursor, pages_, count);
        if (first == none) first = find(0, std::min(pages_, count_->cursor + count), count);
        if (first == none) return none;
        mark(first, count, true);
        count_->used += count;
        count_->cursor = first + count;
        count_->top = std::max(count_->top, count_->cursor);
        return first;
    }

    /// Takes a page that is known to be free.
    void take(std::uint32_t page) noexcept {
        mark(page, 1, true);
        ++count_->used;
        count_->top = std::max(count_->top, page + 1);
    }

    void release(std::uint32_t first, std::uint32_t count) noexcept {
        mark(first, count, false);
        count_->used -= count;
        count_->cursor = std::min(count_->cursor, first);
        std::uint32_t top = count_->top; // not looked up for each page
        if (first + count == top)
            while (top > 0 && !taken(top - 1)) --top;
        count_->top = top;
        count_->cursor = std::min(count_->cursor, top); // `count` more pages never reach beyond top() + count
    }

    [[nodiscard]] bool taken(std::uint32_t page) const noexcept {
        return (word_[page / 64] >> (page % 64) & 1U) != 0;
    }
    [[nodiscard]] std::uint32_t used() const noexcept { return count_->used; }
    [[nodiscard]] std::uint32_t capacity() const noexcept { return pages_; }
    /// One past the highest page that is taken: the file must reach this far.
    [[nodiscard]] std::uint32_t top() const noexcept { return count_->top; }

  private:
    [[nodiscard]] static std::size_t words(std::uint32_t pages) noexcept {
        return (std::size_t{pages} + 63) / 64;
    }
    [[nodiscard]] std::uint32_t find(std::uint32_t begin, std::uint32_t end,
                                     std::uint32_t count) const noexcept {
        std::uint32_t run = 0;
        for (std::uint32_t page = begin; page < end;) {
            const std::uint64_t rest = word_[page / 64] >> (page % 64);
            const std::uint32_t left = std::min<std::uint32_t>(64 - page % 64, end - page);
            const auto free = std::min(left, static_cast<std::uint32_t>(std::countr_zero(rest)));
            run += free;
            if (run >= count) return page + free - run;
            page += free;
            if (free == left) continue;
            run = 0;
            page += std::min(end - page,
                             static_cast<std::uint32_t>(std::countr_one(word_[page / 64] >> (page % 64))));
        }
        return none;
    }

    void mark(std::uint32_t first, std::uint32_t count, bool taken_now) noexcept {
        for (std::uint32_t page = first; page < first + count; ++page) {
            const std::uint64_t bit = std::uint64_t{1} << (page % 64);
            if (taken_now)
                word_[page / 64] |= bit;
            else
                word_[page / 64] &= ~bit;
        }
    }

    counters* count_ = nullptr;
    std::uint64_t* word_ = nullptr;
    std::uint32_t pages_ = 0;
};

}} // namespace kvtl::v0
