// Rows of kept entries, in small blocks from one pool, so that a head that keeps little really takes little.
//
// What:   a lane (one head of one layer of one sequence) is a chain of blocks of 16 rows. A row is one
//         entry: its records (slots/compressor.hpp), token number, score, log-weight and what the score
//         policy remembers of it. Chains of entries with smaller records (demoted ones) use blocks of the
//         same pool: such a block has as many rows as fit.
//         Rows have no fixed order: attention does not care, and so an entry leaves by moving the last row
//         into its place.
// Shapes: a block holds R = 16 records of keys and R of values, each of the codec's bytes at most, then token
//         (R), score (R), log_weight (R), remembered (R). Smaller records: R > 16.
// Cost:   push, pop and remove move one row; opening a lane walks its chain once (a link per 16 rows).
// Limits: at most half a block per lane is unused on average; blocks never move.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// Rows of a block: small, because a lane's last block is half empty.
inline constexpr std::uint32_t rows_per_block = 16;

[[nodiscard]] constexpr std::uint32_t blocks_for(std::size_t rows,
                                                 std::uint32_t per_block = rows_per_block) noexcept {
    return static_cast<std::uint32_t>((rows + per_block - 1) / per_block);
}

/// Where the rows of a block lie: `rows` of them, with records of at most these bytes.
struct row_format {
    record_bytes most{};
    std::uint32_t rows = 0;
    std::size_t value = 0, token = 0, score = 0, log_weight = 0, record = 0, bytes = 0;
};

/// A chain of blocks: all that a lane owns.
struct block_chain {
    std::uint32_t first = none;
    std::uint32_t last = none;
    std::uint32_t blocks = 0;
    std::uint32_t rows = 0;
};

/// Blocks of equal size and the list of those that are free. E: the plain type. Record: what is remembered of
/// an entry, trivially copyable.
template <element E, class Record> class row_pool {
    static_assert(std::is_trivially_copyable_v<Record>);

  public:
    using element_type = E;
    using record_type = Record;

    /// Bytes of a block for entries of these records, a multiple of a cache line.
    [[nodiscard]] static std::size_t block_bytes(record_bytes b) noexcept {
        return format_of(b, rows_per_block).bytes;
    }
    /// As many rows of these records as a block of `bytes` bytes has room for.
    [[nodiscard]] static row_format format_within(record_bytes b, std::size_t bytes) noexcept {
        row_format f;
        for (row_format next = format_of(b, 1); next.bytes <= bytes; next = format_of(b, f.rows + 1))
            f = next;
        return f;
    }
    /// Bytes of the pool's table of links.
    [[nodiscard]] static std::size_t table_bytes(std::size_t blocks) noexcept {
        return blocks * sizeof(std::uint32_t);
    }

    row_pool() = default;
    row_pool(std::span<std::byte> blocks, std::span<std::uint32_t> next, record_bytes most) noexcept
        : format_(format_of(most, rows_per_block)), memory_(blocks.data()), next_(next),
          free_count_(static_cast<std::uint32_t>(next.size())) {
        for (std::uint32_t i = 0; i < free_count_; ++i) next_[i] = i + 1 < free_count_ ? i + 1 : none;
        free_ = free_count_ > 0 ? 0 : none;
    }

    [[nodiscard]] const row_format& format() const noexcept { return format_; }
    [[nodiscard]] std::size_t block_bytes() const noexcept { return format_.bytes; }
    [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(next_.size()); }
    [[nodiscard]] std::uint32_t free_blocks() const noexcept { return free_count_; }
    [[nodiscard]] std::uint32_t used_peak() const noexcept { return used_peak_; }
    [[nodiscard]] std::uint32_t next(std::uint32_t block) const noexcept { return next_[block]; }
    [[nodiscard]] std::byte* bytes(std::uint32_t block) const noexcept {
        return memory_ + block * format_.bytes;
    }

    /// Appends a free block to the chain; the caller has seen to it that there is one.
    std::uint32_t extend(block_chain& chain) noexcept {
        assert(free_ != none);
        const std::uint32_t block = free_;
        free_ = next_[block];
        --free_count_;
        used_peak_ = std::max(used_peak_, size() - free_count_);
        next_[block] = none;
        (chain.last == none ? chain.first : next_[chain.last]) = block;
        chain.last = block;
        ++chain.blocks;
        return block;
    }
    /// Frees the chain's blocks behind the first `keep`; `last_kept` is the block that becomes the last.
    void cut(block_chain& chain, std::uint32_t keep, std::uint32_t last_kept) noexcept {
        if (keep >= chain.blocks) return;
        std::uint32_t& link = keep == 0 ? chain.first : next_[last_kept];
        next_[chain.last] = free_;
        free_ = link;
        link = none;
        free_count_ += chain.blocks - keep;
        chain.blocks = keep;
        chain.last = keep == 0 ? none : last_kept;
    }
    /// A chain that has as many blocks as `from` gets its rows.
    void copy(const block_chain& from, block_chain& to) const noexcept {
        for (std::uint32_t a = from.first, b = to.first; a != none; a = next_[a], b = next_[b])
            std::memcpy(bytes(b), bytes(a), format_.bytes);
        to.rows = from.rows;
    }
    void release(block_chain& chain) noexcept {
        cut(chain, 0, none);
        chain.rows = 0;
    }

  private:
    [[nodiscard]] static constexpr row_format format_of(record_bytes b, std::uint32_t rows) noexcept {
        std::size_t used = 0;
        const auto put = [&used](std::size_t bytes) {
            const std::size_t at = used;
            used += (bytes + 15) / 16 * 16;
            return at;
        };
        row_format f{.most = b, .rows = rows};
        static_cast<void>(put(std::size_t{rows} * b.key));
        f.value = put(std::size_t{rows} * b.value);
        f.token = put(rows * sizeof(std::uint32_t));
        f.score = put(rows * sizeof(float));
        f.log_weight = put(rows * sizeof(float));
        f.record = put(std::is_empty_v<Record> ? 0 : rows * sizeof(Record));
        f.bytes = (used + 63) / 64 * 64;
        return f;
    }

    row_format format_{};
    std::byte* memory_ = nullptr;
    std::span<std::uint32_t> next_;
    std::uint32_t free_ = none, free_count_ = 0, used_peak_ = 0;
};

/// A lane whose chain has been walked: rows by number. Valid until another view changes the same chain.
/// Rows: of a block, or 0 where its format has the number.
template <class Pool, std::uint32_t Rows = rows_per_block> class kept_rows {
  public:
    using E = typename Pool::element_type;
    using Record = typename Pool::record_type;

    /// `blocks` is scratch for the numbers of as many blocks as the lane may come to have. `format` outlives
    /// the view.
    kept_rows(Pool& pool, block_chain& chain, std::span<std::uint32_t> blocks,
              const row_format& format) noexcept
        : pool_(&pool), chain_(&chain), block_(blocks), format_(&format) {
        std::uint32_t b = chain.first;
        for (std::uint32_t i = 0; i < chain.blocks; ++i, b = pool.next(b)) block_[i] = b;
    }
    kept_rows(Pool& pool, block_chain& chain, std::span<std::uint32_t> blocks) noexcept
        : kept_rows(pool, chain, blocks, pool.format()) {}

    [[nodiscard]] const row_format& format() const noexcept { return *format_; }
    [[nodiscard]] std::uint32_t size() const noexcept { return chain_->rows; }
    [[nodiscard]] std::uint32_t& token(std::uint32_t i) const noexcept {
        return get<std::uint32_t>(i, format_->token);
    }
    [[nodiscard]] float& score(std::uint32_t i) const noexcept { return get<float>(i, format_->score); }
    [[nodiscard]] float& log_weight(std::uint32_t i) const noexcept {
        return get<float>(i, format_->log_weight);
    }
    /// A reference; an empty record, which takes no memory, comes by value.
    [[nodiscard]] decltype(auto) record(std::uint32_t i) const noexcept {
        if constexpr (std::is_empty_v<Record>)
            return Record{};
        else
            return (get<Record>(i, format_->record));
    }
    [[nodiscard]] std::byte* key_record(std::uint32_t i) const noexcept {
        return pool_->bytes(in(i)) + std::size_t{at(i)} * format_->most.key;
    }
    [[nodiscard]] std::byte* value_record(std::uint32_t i) const noexcept {
        return pool_->bytes(in(i)) + format_->value + std::size_t{at(i)} * format_->most.value;
    }
    /// The same where records are plain rows: for policies that work on stored rows.
    [[nodiscard]] E* key(std::uint32_t i) const noexcept { return reinterpret_cast<E*>(key_record(i)); }
    [[nodiscard]] E* value(std::uint32_t i) const noexcept { return reinterpret_cast<E*>(value_record(i)); }

    /// f(first row, keys, values, log-weights) for the records of rows [begin, end), piece by piece.
    template <class F> void pieces(std::uint32_t begin, std::uint32_t end, F&& f) const noexcept {
        for (std::uint32_t i = begin; i < end;) {
            const std::uint32_t n = std::min(end, (i / per_block() + 1) * per_block()) - i;
            f(i, records_view{key_record(i), n, format_->most.key},
              records_view{value_record(i), n, format_->most.value}, &log_weight(i));
            i += n;
        }
    }

    /// Adds a row with log-weight 0; records and score are the caller's to fill.
    std::uint32_t push(std::uint32_t token_number) const noexcept {
        const std::uint32_t i = chain_->rows++;
        if (i == chain_->blocks * per_block()) block_[i / per_block()] = pool_->extend(*chain_);
        token(i) = token_number;
        score(i) = 0.0F;
        log_weight(i) = 0.0F;
        if constexpr (requires { Record::arrived(token_number); })
            record(i) = Record::arrived(token_number);
        else
            record(i) = Record{};
        return i;
    }
    /// Keeps the first n rows.
    void truncate(std::uint32_t n) const noexcept {
        if (n >= chain_->rows) return;
        chain_->rows = n;
        const std::uint32_t keep = blocks_for(n, per_block());
        pool_->cut(*chain_, keep, keep == 0 ? none : block_[keep - 1]);
    }
    /// Row i goes; the last row takes its place.
    void remove(std::uint32_t i) const noexcept {
        if (const std::uint32_t last = chain_->rows - 1; i != last) copy(last, i);
        truncate(chain_->rows - 1);
    }
    void copy(std::uint32_t from, std::uint32_t to) const noexcept {
        std::memcpy(key_record(to), key_record(from), format_->most.key);
        std::memcpy(value_record(to), value_record(from), format_->most.value);
        token(to) = token(from);
        score(to) = score(from);
        log_weight(to) = log_weight(from);
        record(to) = record(from);
    }

    [[nodiscard]] std::uint32_t per_block() const noexcept {
        if constexpr (Rows != 0)
            return Rows;
        else
            return format_->rows;
    }

  private:
    [[nodiscard]] std::uint32_t in(std::uint32_t i) const noexcept { return block_[i / per_block()]; }
    [[nodiscard]] std::uint32_t at(std::uint32_t i) const noexcept { return i % per_block(); }
    template <class T> [[nodiscard]] T& get(std::uint32_t i, std::size_t offset) const noexcept {
        return reinterpret_cast<T*>(pool_->bytes(in(i)) + offset)[at(i)];
    }

    Pool* pool_;
    block_chain* chain_;
    std::span<std::uint32_t> block_;
    const row_format* format_;
};

}} // namespace kvtl::v0
