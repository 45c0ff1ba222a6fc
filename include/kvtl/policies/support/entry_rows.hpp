// Base of indices that keep one row of numbers per entry (and, unless it is joint, per KV head).
//
// Shape:  a lane's summaries are (units, max_entries, width) of E without gaps, so all units are one table
//         that a single product scores. Entries that a unit does not have score -inf.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/slots/index.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

namespace kvtl { inline namespace v0 { namespace detail {

template <element E> struct entry_rows {
    std::size_t width = 0; ///< numbers per entry

    [[nodiscard]] std::size_t unit_bytes(const summary_shape& shape) const noexcept {
        return shape.max_entries * width * sizeof(E);
    }
    [[nodiscard]] E* row(const summary_view& view, std::uint32_t u, std::uint32_t i) const noexcept {
        return view.of<E>(u) + i * width;
    }
    /// `columns` numbers, from number `first` on, of every entry of every unit.
    [[nodiscard]] rows_view<E> all(const units_view& u, std::size_t first,
                                   std::size_t columns) const noexcept {
        return {u.summary.of<E>(0) + first, std::size_t{u.count} * u.max_entries, columns, width};
    }
};

/// out[j] = x . rows[j], stored as E.
template <element R, element E> void encode_products(const float* x, rows_view<R> rows, E* out) noexcept {
    float some[64];
    for (std::size_t j = 0; j < rows.count; j += std::size(some)) {
        const std::size_t n = std::min(std::size(some), rows.count - j);
        simd::dot_rows(x, rows.slice(j, n), some);
        simd::encode(some, out + j, n);
    }
}

/// out: (queries, U, max_entries).
inline void hide_absent_entries(const units_view& u, std::uint32_t queries, float* out) noexcept {
    if (u.unit == nullptr) return; // units of a fixed size are complete
    for (std::uint32_t g = 0; g < queries; ++g)
        for (std::uint32_t i = 0; i < u.count; ++i, out += u.max_entries)
            std::fill(out + std::min(u.entries(i), u.max_entries), out + u.max_entries,
                      -std::numeric_limits<float>::infinity());
}

}}} // namespace kvtl::v0::detail
