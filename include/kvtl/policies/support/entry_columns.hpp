// Base of indices whose entries have few numbers. The numbers lie column by column in blocks of 16 entries,
// as the kernel for short rows needs them (simd/dot_columns.hpp).
//
// Shape:  a lane's summaries are (units * max_entries) entries in blocks of (width, 16) of E. The last block
//         reaches beyond the last unit (tail_bytes).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/entry_rows.hpp>
#include <kvtl/simd/dot_columns.hpp>

namespace kvtl { inline namespace v0 { namespace detail {

template <element E> struct entry_columns {
    static constexpr std::size_t block = simd::column_block;
    std::size_t width = 0; ///< numbers per entry

    [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
        return shape.max_entries * width * sizeof(E);
    }
    [[nodiscard]] std::size_t tail_bytes() const noexcept { return (block - 1) * width * sizeof(E); }

    /// Number `first` and what follows of entry i of unit u become x . rows[0], x . rows[1], ...
    template <element R>
    void set_products(const summary_view& view, std::uint32_t u, std::uint32_t i, std::size_t first,
                      const float* x, rows_view<R> rows) const noexcept {
        float some[64];
        for (std::size_t j = 0; j < rows.count; j += std::size(some)) {
            const std::size_t n = std::min(std::size(some), rows.count - j);
            simd::dot_rows(x, rows.slice(j, n), some);
            for (std::size_t c = 0; c < n; ++c) set(view, u, i, first + j + c, some[c]);
        }
    }
    void set(const summary_view& view, std::uint32_t u, std::uint32_t i, std::size_t column,
             float x) const noexcept {
        const std::size_t e = std::size_t{u} * view.shape.max_entries + i;
        view.of<E>(0)[e / block * block * width + column * block + e % block] = from_float<E>(x);
    }

    /// out (queries, U, max_entries) = q (queries, q_stride) . `columns` numbers, from `first` on, of every
    /// entry; -inf for entries that a unit does not have.
    void score(const float* q, std::uint32_t queries, std::size_t q_stride, const units_view& u,
               std::size_t first, std::size_t columns, float* out) const noexcept {
        const std::size_t entries = std::size_t{u.count} * u.max_entries;
        simd::dot_columns(q, queries, q_stride,
                          simd::columns_view<E>{u.summary.of<E>(0), entries, width, first, columns}, out,
                          entries);
        hide_absent_entries(u, queries, out);
    }
};

}}} // namespace kvtl::v0::detail
