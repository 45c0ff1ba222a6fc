// Inner products of f32 queries with bf16 rows by the processor's own instruction (AVX512_BF16).
//
// What:   `vdpbf16ps` multiplies 32 pairs of bf16 numbers and adds them to 16 sums at the price of one multiply-add, without
//         a conversion of the rows. A query is cut in two bf16 numbers once per call, q = high + low, and meets a row twice.
// Shapes: q (D) or (G,D) f32, rows (N,D) of bf16, out (N) or (G,N).
// Cost:   2 N G D multiply-adds, two of a kind at a time, and some ten instructions per 32 numbers of a query and call.
// Limits: within 2^-17 of a product, since high + low has 16 to 17 bits of q; sums of 64 random products were within 1.8e-6
//         of the sum of their magnitudes (f32: 7e-8). The instruction rounds to nearest even whatever the mode, takes
//         subnormal numbers (below 1.2e-38) for zero and makes zero of subnormal sums. |q| < 3.39e38, what bf16 can hold. A
//         row's sum has the same bits wherever it stands and whatever the group; one with an infinity gives a NaN. Other rows
//         than those of 32, 64, .. 256 numbers take the way of every other element (tile.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/tile.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 { namespace simd {

/// Whether products of bf16 numbers are one instruction that is worth it. On cores that have tiles for such products (AMX) it
/// takes as long as four multiply-adds (seen on Emerald Rapids), and conversions are faster.
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__AMX_BF16__)
#define KVTL_BF16_PRODUCTS 1
#endif
#ifdef KVTL_BF16_PRODUCTS
template <class Arch> inline constexpr bool has_bf16_products = std::derived_from<Arch, xsimd::avx512bw>;
#else
template <class Arch> inline constexpr bool has_bf16_products = false;
#endif

/// Numbers of a row at most: queries that are cut in two lie on the stack, 1 KiB each.
inline constexpr std::size_t bf16_query_dims = 256;
/// Whether the instruction is used for rows of so many numbers: whole registers, since a part of one costs what is gained.
[[nodiscard]] constexpr bool bf16_products_of(std::size_t dim) noexcept {
    return dim % 32 == 0 && dim <= bf16_query_dims;
}

/// out[g * out_stride + i] = q_g . rows[i] for rows of which bf16_products_of(rows.dim); q_g = q + g * q_stride. Only where
/// has_bf16_products.
template <class Arch>
KVTL_INLINE_KERNEL void bf16_dot_group(const float* q, std::size_t group, std::size_t q_stride,
                                       rows_view<bf16> rows, float* out, std::size_t out_stride) noexcept;

#ifdef KVTL_BF16_PRODUCTS

namespace bf16_parts {

inline constexpr std::size_t bf16_lanes = 32;  ///< numbers per register
inline constexpr std::size_t bf16_queries = 8; ///< that are cut in two at a time

/// As intrinsics, gcc 12 would copy sums from register to register and run out of them.
[[gnu::always_inline]] inline __m512 add_products(__m512 sum, __m512i x, __m512i y) noexcept {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
}

/// Two registers of floats as 32 bf16 numbers.
[[gnu::always_inline]] inline __m512i to_bf16(__m512 first, __m512 second) noexcept {
    __m512i packed;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(packed) : "v"(first), "v"(second));
    return packed;
}

[[gnu::always_inline]] inline __m512 from_bf16(__m256i x) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/// A register that stays one: gcc 12 would load it again for every use.
[[gnu::always_inline]] inline __m512i keep_bf16(__m512i x) noexcept {
    asm("" : "+v"(x));
    return x;
}

/// 64-byte steps of a query that is cut in two: 32 high parts, then the same numbers' low parts.
[[nodiscard]] constexpr std::size_t parts_of(std::size_t dim) noexcept {
    return 2 * dim;
}

/// Cuts a query in two: parts_of(dim) numbers.
template <class Arch>
[[gnu::always_inline]] inline void cut_in_two(const float* q, std::size_t dim,
                                              std::uint16_t* parts) noexcept {
    const auto cut = [&](__m512 first, __m512 second) __attribute__((always_inline)) {
        const __m512i high = to_bf16(first, second);
        const __m512 low_first = _mm512_sub_ps(first, from_bf16(_mm512_castsi512_si256(high)));
        const __m512 low_second = _mm512_sub_ps(second, from_bf16(_mm512_extracti64x4_epi64(high, 1)));
        _mm512_storeu_si512(parts, high);
        _mm512_storeu_si512(parts + bf16_lanes, to_bf16(low_first, low_second));
        parts += 2 * bf16_lanes;
    };
    for (std::size_t d = 0; d < dim; d += bf16_lanes)
        cut(load<Arch>(q + d), load<Arch>(q + d + bf16_lanes / 2));
}

/// out[g * out_stride + r] for Q queries in two parts, parts_of(dim) apart, and R rows: tile() with another instruction.
template <class Arch, std::size_t R, std::size_t Q>
[[gnu::always_inline]] inline void bf16_tile(const std::uint16_t* parts, const bf16* rows,
                                             std::size_t row_stride, std::size_t dim, float* out,
                                             std::size_t out_stride) noexcept {
    using F = floats<Arch>;
    const std::size_t next = parts_of(dim);
    F sum[sums_of<Arch, R, Q>];
    unrolled<sums_of<Arch, R, Q>>([&](auto i) { sum[i] = F(0.0F); });
    constexpr std::size_t S = side_by_side<R, Q>;
    unrolled<R / S>([&](auto block) __attribute__((always_inline)) {
        for (std::size_t d = 0; d < dim; d += bf16_lanes) {
            __m512i high[Q], low[Q];
            unrolled<Q>([&](auto g) {
                high[g] = keep_bf16(_mm512_loadu_si512(parts + g * next + 2 * d));
                low[g] = keep_bf16(_mm512_loadu_si512(parts + g * next + 2 * d + bf16_lanes));
            });
            unrolled<S>([&](auto s) {
                constexpr std::size_t r = block * S + s;
                const __m512i x = keep_bf16(_mm512_loadu_si512(rows + r * row_stride + d));
                unrolled<Q>([&](auto g) { sum[g * R + r] = add_products(sum[g * R + r], x, high[g]); });
                unrolled<Q>([&](auto g) { sum[g * R + r] = add_products(sum[g * R + r], x, low[g]); });
            });
        }
    });
    store_sums<Arch, R, Q>(sum, out, out_stride);
}

} // namespace bf16_parts

template <class Arch>
KVTL_INLINE_KERNEL void bf16_dot_group(const float* q, std::size_t group, std::size_t q_stride,
                                       rows_view<bf16> rows, float* out, std::size_t out_stride) noexcept {
    alignas(64) std::uint16_t parts[bf16_parts::bf16_queries * 2 * bf16_query_dims];
    const std::uint16_t* const query = parts;
    const std::size_t dim = rows.dim, next = bf16_parts::parts_of(dim);
    for (; group != 0;) {
        const std::size_t count = std::min(bf16_parts::bf16_queries, group);
        for (std::size_t g = 0; g < count; ++g)
            bf16_parts::cut_in_two<Arch>(q + g * q_stride, dim, parts + g * next);
        const auto sweep = [=](auto together) __attribute__((always_inline)) {
            constexpr std::size_t R = decltype(together)::value;
            for_row_blocks<R>(
                rows.count, [=](std::size_t i) __attribute__((always_inline)) {
                    const auto against = [=](auto queries, std::size_t g) __attribute__((always_inline)) {
                        bf16_parts::bf16_tile<Arch, R, decltype(queries)::value>(
                            query + g * next, rows.row(i), rows.stride, dim, out + g * out_stride + i,
                            out_stride);
                    };
                    if (R == 4 || rows.dim > 128) ask_ahead<Arch>(rows, i, R); // four: as tile_group does
                    if constexpr (R != 4) {
                        against(constant<1>{}, 0);
                    } else {
                        std::size_t g = 0; // four rows meet all queries before the next four come from memory
                        for (; g + 4 <= count; g += 4) against(constant<4>{}, g);
                        if (count - g == 3) against(constant<3>{}, g);
                        if (count - g == 2) against(constant<2>{}, g);
                        if (count - g == 1) against(constant<1>{}, g);
                    }
                });
        };
        if (rows.count < 4)
            for (std::size_t g = 0; g < count; ++g)
                for (std::size_t i = 0; i < rows.count; ++i)
                    bf16_parts::bf16_tile<Arch, 1, 1>(query + g * next, rows.row(i), 0, dim,
                                                      out + g * out_stride + i, 0);
        else if (count == 1 && rows.count >= 16)
            sweep(constant<16>{});
        else
            sweep(constant<4>{});
        group -= count, q += count * q_stride, out += count * out_stride;
    }
}

#ifdef KVTL_INSTANCE
KVTL_INSTANCE void bf16_dot_group<default_arch>(const float*, std::size_t, std::size_t, rows_view<bf16>,
                                                float*, std::size_t) noexcept;
#endif

#undef KVTL_BF16_PRODUCTS
#endif

}}} // namespace kvtl::v0::simd
