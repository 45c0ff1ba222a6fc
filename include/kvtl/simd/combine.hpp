// Rows from coefficients: how a low-rank codec gets keys and values back.
//
// What:   out row i = sum over r < count[i] of coefficient[i][r] * basis[r], a block of rows against a block of columns
//         whose sums stay in registers; spectral_sums weighs coefficients of many rows before they are multiplied by
//         the basis at all.
// Shapes: coefficients (n) pointers to count[i] numbers of E each; basis (R, D) of any element, R >= every count; out (n, D) f32.
// Cost:   n * D * the largest count of each four rows, in multiply-adds; every row of the basis is loaded once per four
//         rows.
// Limits: a row's sums do not depend on which rows are beside it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/unroll.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 { namespace simd {

/// Coefficients of one row; they need only the alignment of E.
template <element E> struct coefficient_row {
    const E* data = nullptr;
    std::uint32_t count = 0;
};

namespace detail {

inline constexpr std::size_t combine_depth = 64; ///< coefficients decoded at once

/// Columns [column, column + columns) of T rows; columns is at most B registers.
template <class Arch, std::size_t B, std::size_t T, element E, element R>
inline void combine_block(const coefficient_row<E>* rows, rows_view<R> basis, std::size_t column,
                          std::size_t columns, float* out, std::size_t out_stride) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[T * B];
    unrolled<T * B>([&](auto i) { sum[i] = F(0.0F); });
    std::size_t most = 0;
    for (std::size_t t = 0; t < T; ++t) most = std::max<std::size_t>(most, rows[t].count);
    alignas(64) float coefficient[T][combine_depth];
    const bool whole = columns == B * lane_count;
    for (std::size_t first = 0; first < most; first += combine_depth) {
        const std::size_t depth = std::min(combine_depth, most - first);
        for (std::size_t t = 0; t < T; ++t) {
            const std::size_t there = std::min(depth, rows[t].count > first ? rows[t].count - first : 0);
            if (there != 0) decode<Arch>(rows[t].data + first, coefficient[t], there);
            if (there != depth) std::fill(coefficient[t] + there, coefficient[t] + depth, 0.0F);
        }
        for (std::size_t r = 0; r < depth; ++r) {
            const R* from = basis.row(first + r) + column;
            F x[B];
            if (whole) {
                unrolled<B>([&](auto b) { x[b] = keep<Arch>(load<Arch>(from + b * lane_count)); });
            } else {
                unrolled<B>([&](auto b) {
                    const std::size_t at = b * lane_count;
                    x[b] = at >= columns ? F(0.0F)
                                         : load_part<Arch>(from + at, std::min(lane_count, columns - at));
                });
            }
            unrolled<T>([&](auto t) {
                const F c = keep<Arch>(F(coefficient[t][r]));
                unrolled<B>([&](auto b) { sum[t * B + b] = fma<Arch>(c, x[b], sum[t * B + b]); });
            });
        }
    }
    unrolled<T * B>([&](auto i) {
        const std::size_t at = i % B * lane_count;
        float* to = out + i / B * out_stride + column + at;
        if (whole || at + lane_count <= columns)
            store<Arch>(to, sum[i]);
        else if (at < columns)
            store_part<Arch>(to, sum[i], columns - at);
    });
}

} // namespace detail

/// out[i * out_stride + d] = sum over r < rows[i].count of rows[i].data[r] * basis[r][d], for i < n and d < basis.dim.
template <class Arch = default_arch, element E, element R>
KVTL_INLINE_KERNEL void combine_rows(const coefficient_row<E>* rows, std::size_t n, rows_view<R> basis,
                                     float* out, std::size_t out_stride) noexcept {
    constexpr std::size_t B = floats_per_register<Arch> == 8 ? 2 : 4; // AVX has 16 registers, others 32
    constexpr std::size_t width = B * floats_per_register<Arch>;
    const auto sweep = [&](auto at_once, std::size_t i) {
        for (std::size_t column = 0; column < basis.dim; column += width)
            detail::combine_block<Arch, B, decltype(at_once)::value>(rows + i, basis, column,
                                                                     std::min(width, basis.dim - column),
                                                                     out + i * out_stride, out_stride);
    };
    std::size_t i = 0;
    for (; i + 4 <= n; i += 4) sweep(constant<4>{}, i);
    if (n - i >= 2) sweep(constant<2>{}, i), i += 2;
    if (i < n) sweep(constant<1>{}, i);
}

namespace detail {

/// Columns [column, column + columns) of the sums of G queries; columns is at most B registers.
template <class Arch, std::size_t B, std::size_t G, element E>
inline void spectral_block(const float* weight, std::size_t weight_stride, const coefficient_row<E>* rows,
                           std::size_t n, std::size_t column, std::size_t columns, float* sums,
                           std::size_t sums_stride) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[G * B];
    unrolled<G * B>([&](auto i) { sum[i] = F(0.0F); });
    for (std::size_t i = 0; i < n; ++i) {
        if (rows[i].count <= column) continue;
        const E* c = rows[i].data + column;
        const std::size_t there = rows[i].count - column;
        F x[B];
        if (there >= B * lane_count)
            unrolled<B>([&](auto b) { x[b] = keep<Arch>(load<Arch>(c + b * lane_count)); });
        else
            unrolled<B>([&](auto b) {
                const std::size_t at = b * lane_count;
                x[b] = at >= there ? F(0.0F) : load_part<Arch>(c + at, std::min(lane_count, there - at));
            });
        unrolled<G>([&](auto g) {
            const F w = keep<Arch>(F(weight[g * weight_stride + i]));
            unrolled<B>([&](auto b) { sum[g * B + b] = fma<Arch>(w, x[b], sum[g * B + b]); });
        });
    }
    unrolled<G * B>([&](auto i) {
        const std::size_t at = i % B * lane_count;
        float* to = sums + i / B * sums_stride + at;
        if (at + lane_count <= columns)
            store<Arch>(to, sum[i]);
        else if (at < columns)
            store_part<Arch>(to, sum[i], columns - at);
    });
}

} // namespace detail

/// sums[g * sums_stride + r] = sum over i of weight[g * weight_stride + i] * coefficient[i][first + r], for r < depth.
template <class Arch = default_arch, element E>
KVTL_INLINE_KERNEL void spectral_sums(const float* weight, std::size_t group, std::size_t weight_stride,
                                      const coefficient_row<E>* rows, std::size_t n, std::size_t first,
                                      std::size_t depth, float* sums, std::size_t sums_stride) noexcept {
    constexpr std::size_t B = floats_per_register<Arch> == 8 ? 2 : 4; // as above
    constexpr std::size_t width = B * floats_per_register<Arch>;
    const auto sweep = [&](auto queries, std::size_t g) {
        for (std::size_t r = 0; r < depth; r += width)
            detail::spectral_block<Arch, B, decltype(queries)::value>(
                weight + g * weight_stride, weight_stride, rows, n, first + r, std::min(width, depth - r),
                sums + g * sums_stride + r, sums_stride);
    };
    std::size_t g = 0;
    for (; g + 4 <= group; g += 4) sweep(constant<4>{}, g);
    if (group - g >= 2) sweep(constant<2>{}, g), g += 2;
    if (g < group) sweep(constant<1>{}, g);
}

#ifdef KVTL_COMPILED // those that the codecs of this library use
#define KVTL_COMBINE(E, R)                                                                                   \
    KVTL_INSTANCE void combine_rows<default_arch, E, R>(const coefficient_row<E>*, std::size_t,              \
                                                        rows_view<R>, float*, std::size_t) noexcept;
KVTL_COMBINE(float, float)
KVTL_COMBINE(f16, float)
KVTL_COMBINE(f16, f16)
#undef KVTL_COMBINE
KVTL_INSTANCE void spectral_sums<default_arch, f16>(const float*, std::size_t, std::size_t,
                                                    const coefficient_row<f16>*, std::size_t, std::size_t,
                                                    std::size_t, float*, std::size_t) noexcept;
#endif

}}} // namespace kvtl::v0::simd
