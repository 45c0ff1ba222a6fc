// Entries of small units side by side, so that attention sees blocks of rows instead of one row at a time.
//
// What:   single tokens and groups of a few are copied here in the order of their units; when a block is full, or
//         the lane is through, it is attended as a whole. The blocks of a lane are the same however its units were
//         read, so are the bits of the result.
// Shapes: simd::attend_block entries of one lane, as records in the format of their slots.
// Cost:   one copy of every entry, from cache to cache.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/store/lane.hpp>
#include <kvtl/core/store/page_format.hpp>
#include <kvtl/simd/attend.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <limits>
#include <span>

namespace kvtl { inline namespace v0 {

/// Nothing where units are no runs, or have records that are not laid out one by one.
template <class Types> class entry_tile {
  public:
    /// Units of so many entries are gathered; longer ones are blocks of their own.
    [[nodiscard]] static bool gathers(std::uint32_t max_entries) noexcept {
        return Types::sequential && !Types::compressor::ragged && Types::compressor::granule == 1 &&
               max_entries < simd::attend_block / 2;
    }
    [[nodiscard]] static entry_tile take(carver& c, const lane_sizes& sizes,
                                         std::uint32_t max_entries) noexcept {
        entry_tile t;
        if (!gathers(max_entries)) return t;
        t.format_ = page_format::packed(Types::slot_format_of(sizes, max_entries).record, block);
        t.memory_ = c.take<std::byte>(t.format_.page_bytes, 64);
        return t;
    }
    [[nodiscard]] bool in_use() const noexcept { return format_.rows > 0; }

    void clear() noexcept { rows_ = 0; }
    /// Adds `n` entries of `lane` that the queries of `mask` attend: `e`, and those whose records lie behind its own. The
    /// tile has room for them and has no other lane's.
    void put(std::uint32_t lane, const entry_record& e, std::uint64_t mask, std::uint32_t n = 1) noexcept {
        assert(n <= room() && (rows_ == 0 || lane == lane_));
        lane_ = lane;
        std::fill_n(mask_.begin() + rows_, n, mask);
        std::copy_n(e.key, std::size_t{n} * e.bytes.key, format_.key(memory_.data(), rows_));
        std::copy_n(e.value, std::size_t{n} * e.bytes.value, format_.value(memory_.data(), rows_));
        rows_ += n;
    }
    [[nodiscard]] bool full() const noexcept { return rows_ == block; }
    /// Entries that it still takes.
    [[nodiscard]] std::uint32_t room() const noexcept { return block - rows_; }
    [[nodiscard]] std::uint32_t rows() const noexcept { return rows_; }
    /// Whose entries these are, as the step numbers its lanes.
    [[nodiscard]] std::uint32_t lane() const noexcept { return lane_; }
    [[nodiscard]] records_view keys() const noexcept { return format_.keys(memory_.data(), 0, rows_); }
    [[nodiscard]] records_view values() const noexcept { return format_.values(memory_.data(), 0, rows_); }

    /// Whether the same queries attend all entries.
    [[nodiscard]] bool one_mask() const noexcept {
        for (std::uint32_t i = 1; i < rows_; ++i)
            if (mask_[i] != mask_[0]) return false;
        return true;
    }
    /// Queries that attend some of the entries.
    [[nodiscard]] std::uint64_t any_mask() const noexcept {
        std::uint64_t any = 0;
        for (std::uint32_t i = 0; i < rows_; ++i) any |= mask_[i];
        return any;
    }
    /// The queries that attend the same entries as `query` (one bit).
    [[nodiscard]] std::uint64_t alike(std::uint64_t query) const noexcept {
        std::uint64_t same = any_mask();
        for (std::uint32_t i = 0; i < rows_; ++i) same &= (mask_[i] & query) != 0 ? mask_[i] : ~mask_[i];
        return same;
    }
    /// bias[i] = 0 where `query` (one bit) attends entry i, -inf where it does not.
    void absence(std::uint64_t query, float* bias) const noexcept {
        for (std::uint32_t i = 0; i < rows_; ++i)
            bias[i] = (mask_[i] & query) != 0 ? 0.0F : -std::numeric_limits<float>::infinity();
    }

  private:
    static constexpr auto block = static_cast<std::uint32_t>(simd::attend_block);

    page_format format_{};
    std::span<std::byte> memory_;
    std::array<std::uint64_t, block> mask_{};
    std::uint32_t rows_ = 0, lane_ = none;
};

}} // namespace kvtl::v0
