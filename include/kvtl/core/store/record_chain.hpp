// Records of entries that stay in memory, lane by lane, in chains of blocks from one pool.
//
// What:   a lane's records are a chain of blocks, in the order in which they came. A block holds as many entries as
//         attention takes at once, or more where records have sizes of their own and are shorter than they may be. How
//         records lie in a block is the business of page_format.
// Shapes: a block is page_format::page_bytes long.
// Cost:   push() copies one entry; cut() walks the chain once.
// Limits: half of a lane's last block is unused on average; blocks never move.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/page_format.hpp>
#include <kvtl/simd/attend.hpp>
#include <kvtl/unit.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

/// All that a lane owns of a pool.
struct record_chain {
    std::uint32_t first = none, last = none;
    std::uint32_t rows = 0;    ///< entries
    std::uint64_t bytes = 0;   ///< of their records
    std::uint32_t in_last = 0; ///< entries of the last block
};

/// Entries that a block holds at least.
inline constexpr std::uint32_t records_per_block = simd::attend_block;

/// Blocks of equal size, and the list of those that are free.
class record_pool {
  public:
    [[nodiscard]] static constexpr page_format format_of(record_bytes most, bool ragged) noexcept {
        return page_format::packed(most, records_per_block, ragged);
    }

    record_pool() = default;
    /// `memory`: a block for each of `next`, beginning on a cache line.
    record_pool(const page_format& format, std::span<std::byte> memory,
                std::span<std::uint32_t> next) noexcept
        : format_(format), memory_(memory.data()), next_(next) {
        for (std::uint32_t i = 0; i < next_.size(); ++i) next_[i] = i + 1 < next_.size() ? i + 1 : none;
        free_ = next_.empty() ? none : 0;
    }

    [[nodiscard]] const page_format& format() const noexcept { return format_; }
    [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(next_.size()); }
    /// Blocks in use, now and at most so far.
    [[nodiscard]] std::uint32_t used() const noexcept { return used_; }
    [[nodiscard]] std::uint32_t used_peak() const noexcept { return used_peak_; }

    /// Appends an entry. False, and nothing has changed, where that takes a block and none is free.
    [[nodiscard]] bool push(record_chain& chain, const entry_record& e) noexcept {
        if (chain.last == none || !format_.takes(block(chain.last), chain.in_last, e.bytes)) {
            if (used_ + promised_ == size()) return false;
            const std::uint32_t fresh = take();
            (chain.last == none ? chain.first : next_[chain.last]) = fresh;
            chain.last = fresh;
            chain.in_last = 0;
            format_.begin(block(fresh));
        }
        format_.put(block(chain.last), chain.in_last++, e);
        ++chain.rows;
        chain.bytes += e.bytes.entry();
        return true;
    }

    /// Blocks of a chain.
    [[nodiscard]] std::uint32_t blocks_of(const record_chain& chain) const noexcept {
        std::uint32_t n = 0;
        for (std::uint32_t b = chain.first; b != none; b = next_[b]) ++n;
        return n;
    }
    /// So many blocks are kept for chains that are still to be copied, until withdraw(). False, and none is, where fewer are free.
    [[nodiscard]] bool promise(std::uint32_t blocks) noexcept {
        if (blocks > size() - used_ - promised_) return false;
        promised_ += blocks;
        return true;
    }
    void withdraw(std::uint32_t blocks) noexcept { promised_ -= blocks; }
    /// What `from` is, in blocks of its own, which promise() has kept.
    [[nodiscard]] record_chain copy(const record_chain& from) noexcept {
        record_chain to = from;
        std::uint32_t* link = &to.first;
        for (std::uint32_t b = from.first; b != none; b = next_[b]) {
            --promised_;
            *link = to.last = take();
            std::memcpy(block(to.last), block(b), format_.page_bytes);
            link = &next_[to.last];
        }
        return to;
    }

    /// Keeps the first `rows` entries.
    void cut(record_chain& chain, std::uint32_t rows) noexcept {
        if (rows >= chain.rows) return;
        record_chain kept;
        std::uint32_t left = chain.rows, b = chain.first;
        for (; kept.rows < rows; b = next_[b]) {
            const std::uint32_t n = format_.entries_in(block(b), left);
            kept.first = chain.first;
            kept.last = b;
            kept.in_last = std::min(n, rows - kept.rows);
            kept.rows += kept.in_last;
            kept.bytes += format_.bytes_in(block(b), kept.in_last);
            left -= n;
        }
        if (kept.last != none) {
            format_.cut(block(kept.last), kept.in_last);
            next_[kept.last] = none;
        }
        for (; b != none; --used_) {
            const std::uint32_t freed = b;
            b = next_[b];
            next_[freed] = free_;
            free_ = freed;
        }
        chain = kept;
    }

    /// visit(keys, values, next) for the records of a chain, block by block. next: the memory of the block behind.
    template <class Visit> void visit(const record_chain& chain, Visit&& visit) const noexcept {
        std::uint32_t left = chain.rows;
        for (std::uint32_t b = chain.first; left > 0; b = next_[b]) {
            const std::uint32_t n = format_.entries_in(block(b), left);
            left -= n;
            visit(format_.keys(block(b), 0, n), format_.values(block(b), 0, n),
                  left > 0 ? std::span<const std::byte>{block(next_[b]), format_.page_bytes}
                           : std::span<const std::byte>{});
        }
    }

    /// visit(entry) for the entries of a chain, in their order.
    template <class Visit> void each_entry(const record_chain& chain, Visit&& visit) const noexcept {
        std::uint32_t left = chain.rows;
        for (std::uint32_t b = chain.first; left > 0; b = next_[b]) {
            const std::uint32_t n = format_.entries_in(block(b), left);
            for (std::uint32_t row = 0; row < n; ++row) visit(format_.entry(block(b), row));
            left -= n;
        }
    }

    /// Where a reader of a chain is.
    struct cursor {
        std::uint32_t block = none;
        std::uint32_t row = 0;  ///< of the block
        std::uint32_t left = 0; ///< entries of the chain from the block on
    };
    [[nodiscard]] static cursor begin(const record_chain& chain) noexcept {
        return {chain.first, 0, chain.rows};
    }
    /// visit(keys, values) for the next `n` records, which are there, piece by piece.
    template <class Visit> void read(cursor& at, std::uint32_t n, Visit&& visit) const noexcept {
        while (n > 0) {
            const std::uint32_t all = format_.entries_in(block(at.block), at.left),
                                some = std::min(n, all - at.row);
            visit(format_.keys(block(at.block), at.row, some), format_.values(block(at.block), at.row, some));
            n -= some;
            at.row += some;
            if (at.row == all) at = {next_[at.block], 0, at.left - all};
        }
    }

  private:
    /// A free block, which nothing follows.
    [[nodiscard]] std::uint32_t take() noexcept {
        const std::uint32_t fresh = free_;
        free_ = next_[fresh];
        next_[fresh] = none;
        used_peak_ = std::max(used_peak_, ++used_);
        return fresh;
    }
    [[nodiscard]] std::byte* block(std::uint32_t b) const noexcept {
        return memory_ + std::size_t{b} * format_.page_bytes;
    }

    page_format format_{};
    std::byte* memory_ = nullptr;
    std::span<std::uint32_t> next_;
    std::uint32_t free_ = none, used_ = 0, used_peak_ = 0, promised_ = 0;
};

}} // namespace kvtl::v0
