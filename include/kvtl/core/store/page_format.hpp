// How entries lie in a page: key rows first, then value rows at a fixed offset.
//
//   page  [ K row 0 | K row 1 | ... | pad | V row 0 | V row 1 | ... ]
//
// Pages of one field hold rows of values only, or of keys only, without a gap.
//
// A row holds one token of a lane: (lane heads, D) elements, i.e. D for head-wise units and H*D for
// layer-wide ones. A unit's entry i lies in its page i / rows at row i % rows.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/views.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvtl { inline namespace v0 {

template <element E> struct page_format {
    std::uint32_t page_bytes = 0;   ///< a multiple of the device page
    std::uint32_t rows = 0;         ///< entries per page, at least 1
    std::uint32_t width = 0;        ///< elements of one key (or value) row
    std::uint32_t value_offset = 0; ///< bytes from the page's start to V row 0, a multiple of 64
    bool has_keys = true;           ///< false: storage has values only, keys live elsewhere

    static constexpr std::uint32_t line = 64; ///< rows of values start on a cache line

    /// The format for rows of `row_width` elements on a device with pages of `device_page` bytes. Rows longer
    /// than a device page take as few device pages as hold one entry.
    [[nodiscard]] static constexpr page_format make(std::uint32_t device_page,
                                                    std::uint32_t row_width) noexcept {
        const auto row_bytes = static_cast<std::uint32_t>(row_width * sizeof(E));
        page_format f;
        f.width = row_width;
        f.page_bytes = device_page;
        while (f.page_bytes < round_up(row_bytes) + row_bytes) f.page_bytes += device_page;
        f.rows = f.page_bytes / (2 * row_bytes);
        while (round_up(f.rows * row_bytes) + f.rows * row_bytes > f.page_bytes) --f.rows;
        f.value_offset = round_up(f.rows * row_bytes);
        return f;
    }

    /// The format of a buffer for `count` entries that is no page.
    [[nodiscard]] static constexpr page_format packed(std::uint32_t row_width, std::uint32_t count) noexcept {
        const auto row_bytes = static_cast<std::uint32_t>(row_width * sizeof(E));
        return {2 * round_up(count * row_bytes), count, row_width, round_up(count * row_bytes)};
    }
    /// The format of pages that hold values only.
    [[nodiscard]] static constexpr page_format values_only(std::uint32_t device_page,
                                                           std::uint32_t row_width) noexcept {
        const auto row_bytes = static_cast<std::uint32_t>(row_width * sizeof(E));
        page_format f;
        f.width = row_width;
        f.page_bytes = device_page;
        while (f.page_bytes < row_bytes) f.page_bytes += device_page;
        f.rows = f.page_bytes / row_bytes;
        f.has_keys = false;
        return f;
    }

    /// The format of pages that hold either keys or values: an entry has a row in one of each. key() and
    /// value() are then the same row.
    [[nodiscard]] static constexpr page_format split(std::uint32_t device_page,
                                                     std::uint32_t row_width) noexcept {
        page_format f = values_only(device_page, row_width);
        f.has_keys = true;
        return f;
    }

    [[nodiscard]] std::uint32_t pages_for(std::uint32_t entries) const noexcept {
        return (entries + rows - 1) / rows;
    }
    [[nodiscard]] std::size_t row_bytes() const noexcept { return width * sizeof(E); }
    [[nodiscard]] std::size_t entry_bytes() const noexcept { return (has_keys ? 2 : 1) * row_bytes(); }

    [[nodiscard]] E* key(std::byte* page, std::uint32_t row) const noexcept {
        return reinterpret_cast<E*>(page) + std::size_t{row} * width;
    }
    [[nodiscard]] E* value(std::byte* page, std::uint32_t row) const noexcept {
        return reinterpret_cast<E*>(page + value_offset) + std::size_t{row} * width;
    }
    /// Keys of rows [0, count) restricted to one head of the lane: shape (count, dim).
    [[nodiscard]] rows_view<E> keys(std::byte* page, std::uint32_t count, std::uint32_t head,
                                    std::uint32_t dim) const noexcept {
        return {key(page, 0) + std::size_t{head} * dim, count, dim, width};
    }
    [[nodiscard]] rows_view<E> values(std::byte* page, std::uint32_t count, std::uint32_t head,
                                      std::uint32_t dim) const noexcept {
        return {value(page, 0) + std::size_t{head} * dim, count, dim, width};
    }

    void put(std::byte* page, std::uint32_t row, const E* k, const E* v) const noexcept {
        std::memcpy(key(page, row), k, row_bytes());
        std::memcpy(value(page, row), v, row_bytes());
    }

    /// Zeroes what follows the first `used` rows, so that a page's bytes depend on its entries only.
    void pad(std::byte* page, std::uint32_t used) const noexcept {
        const std::size_t keys_end = used * row_bytes();
        const std::size_t values_end = value_offset + used * row_bytes();
        if (value_offset > keys_end) std::memset(page + keys_end, 0, value_offset - keys_end);
        std::memset(page + values_end, 0, page_bytes - values_end);
    }

  private:
    static constexpr std::uint32_t round_up(std::uint32_t bytes) noexcept {
        return (bytes + line - 1) / line * line;
    }
};

}} // namespace kvtl::v0
