// Attention with rounded queries and weights: several products per instruction instead of one multiply-add of floats.
//
// What:   rows of bf16 by `vdpbf16ps` (AVX512_BF16), with queries and weights rounded to bf16; rows of signed bytes by
//         `vpdpbusd` (AVX512_VNNI), with queries rounded to 8 bits and weights to 16, each with a scale of its own. For scores,
//         four rows are transposed by four bytes, so that a register's sums belong to four rows, and only its four blocks of 128
//         bits are added up. For weighted sums of bytes, the four numbers of a column stand side by side, and an instruction
//         adds their products with four high or four low bytes of weights.
// Shapes: q (G,D) f32; rows (N,D); out (G,N); weights (G, attend_block); sums (G,D).
// Cost:   per row and query D / 32 (bf16) or D / 64 (bytes) instructions, per 64 bytes of a row two shuffles, whatever G, and
//         ten instructions for eight sums. Rounding a query costs what twenty rows do: once per run of rows. Weighted sums
//         take half of the multiply-adds of attend.hpp; those of bf16 a shuffle per 32 numbers, whatever the group; those of
//         bytes one per 32 numbers, once per eight queries, and no conversion.
// Limits: a product of a number of a query errs by 2^-9 of it (bf16) or 1/254 of the query's largest number (bytes), a weight by
//         2^-9 of it (bf16) or 2^-17 of the largest of its block (bytes). Outputs of attention over random rows were within
//         1.4e-3 (bf16) and 3.7e-3 (bytes) of double precision (bench/results/kernels.md). D is a multiple of 64, at most
//         256. The bits of a score depend neither on the place of the row nor on the other queries. Subnormal bf16 numbers
//         are taken for zero (bf16_products.hpp).
// Source: ik_llama.cpp rounds the queries of its flash attention in the same way.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/bf16_products.hpp>
#include <kvtl/simd/tile.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace kvtl { inline namespace v0 { namespace simd {

/// Whether there are relaxed products for rows of E. For bf16 where they are worth it (bf16_products.hpp).
template <class Arch, number E> inline constexpr bool has_relaxed_products = false;
template <class Arch> inline constexpr bool has_relaxed_products<Arch, bf16> = has_bf16_products<Arch>;
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define KVTL_BYTE_PRODUCTS 1
template <class Arch>
inline constexpr bool has_relaxed_products<Arch, std::int8_t> = std::derived_from<Arch, xsimd::avx512bw>;
#endif
/// Why there are none, where there are none.
template <number E>
inline constexpr const char* no_relaxed_products =
    !std::is_same_v<E, bf16>
        ? "exact: the processor, or the build for it, lacks vpdpbusd (AVX512_VNNI)"
#if defined(__AVX512BF16__) && defined(__AMX_BF16__)
        : "exact: vdpbf16ps is slow on processors with AMX_BF16, which this build is for";
#else
        : "exact: the processor, or the build for it, lacks vdpbf16ps (AVX512_BF16)";
#endif

/// Whether they are used for rows of so many numbers.
[[nodiscard]] constexpr bool relaxed_products_of(std::size_t dim) noexcept {
    return dim % 64 == 0 && dim <= bf16_query_dims;
}

namespace relaxed {
/// Rows of E as cells: how a query is rounded, what an instruction adds, and what a sum stands for.
template <class Arch, number E> struct products;
} // namespace relaxed

/// Up to eight queries that are rounded for rows of E: 16 KiB at most, for a stack.
template <class Arch, number E> struct rounded_queries {
    static constexpr std::size_t most = 8;
    alignas(64) std::uint32_t cells[most * bf16_query_dims * sizeof(E)]; ///< each 4 times, as rows are read
    typename relaxed::products<Arch, E>::query_scale scale[most];
};

/// Rounds the queries q_g = q + g * q_stride of a group of up to eight. This and the following only where
/// has_relaxed_products and relaxed_products_of(dim).
template <class Arch, number E>
KVTL_INLINE_KERNEL void round_queries(const float* q, std::size_t group, std::size_t q_stride,
                                      std::size_t dim, rounded_queries<Arch, E>& out) noexcept;

/// out[g * out_stride + i] = q . rows[i], nearly, where q is query begin + g and g < count.
template <class Arch, number E>
KVTL_INLINE_KERNEL void score_rounded(const rounded_queries<Arch, E>& q, std::size_t begin, std::size_t count,
                                      rows_view<E> rows, float* out, std::size_t out_stride) noexcept;

/// acc_g += sum over at most attend_block rows of weight[g * attend_block + row] * rows[row], nearly, where acc_g =
/// acc + g * acc_stride. For rows of bytes weights are not negative. If their sum is not finite, the query's sums become NaN; if
/// the largest is below 2e-34, they stay as they are.
template <class Arch, number E>
KVTL_INLINE_KERNEL void accumulate_relaxed(const float* weight, std::size_t group, rows_view<E> rows,
                                           float* acc, std::size_t acc_stride) noexcept;

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__AMX_BF16__)
#define KVTL_BF16_PAIRS 1
#endif
#if defined(KVTL_BF16_PAIRS) || defined(KVTL_BYTE_PRODUCTS)

namespace relaxed {

/// A register that stays one: gcc 12 would load it again for every use.
[[gnu::always_inline]] inline __m512i keep_register(__m512i x) noexcept {
    asm("" : "+v"(x));
    return x;
}

inline constexpr std::size_t rows_at_once = 8;
inline constexpr std::size_t chunk_cells = 16; ///< a register: 64 bytes of a row, as cells of four bytes

/// Of four rows' chunks, cells 4 b + j of row r become lane 4 b + r of register j.
[[gnu::always_inline]] inline void transpose_blocks(__m512i* x) noexcept {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]),
                  c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = keep_register(_mm512_unpacklo_epi64(a, c));
    x[1] = keep_register(_mm512_unpackhi_epi64(a, c));
    x[2] = keep_register(_mm512_unpacklo_epi64(b, d));
    x[3] = keep_register(_mm512_unpackhi_epi64(b, d));
}

/// A chunk of a rounded query as transpose_blocks' rows meet it: four registers, of cells 4 b + j in block b.
[[gnu::always_inline]] inline void spread(__m512i chunk, std::uint32_t* out) noexcept {
    _mm512_store_si512(out, _mm512_shuffle_epi32(chunk, _MM_PERM_AAAA));
    _mm512_store_si512(out + chunk_cells, _mm512_shuffle_epi32(chunk, _MM_PERM_BBBB));
    _mm512_store_si512(out + 2 * chunk_cells, _mm512_shuffle_epi32(chunk, _MM_PERM_CCCC));
    _mm512_store_si512(out + 3 * chunk_cells, _mm512_shuffle_epi32(chunk, _MM_PERM_DDDD));
}

/// Block k of the result is the sum of the blocks of sum[k].
[[gnu::always_inline]] inline __m512 add_blocks(const __m512* sum) noexcept {
    const auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    };
    const __m512 low = halves(sum[0], sum[1]), high = halves(sum[2], sum[3]);
    return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
}
[[gnu::always_inline]] inline __m512i add_blocks(const __m512i* sum) noexcept {
    const auto halves = [](__m512i a, __m512i b) __attribute__((always_inline)) {
        return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
    };
    const __m512i low = halves(sum[0], sum[1]), high = halves(sum[2], sum[3]);
    return _mm512_add_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
}

#ifdef KVTL_BF16_PAIRS
template <class Arch> struct products<Arch, bf16> {
    using sum_type = __m512;
    struct query_scale {};
    /// Chunks of a query, spread.
    [[gnu::always_inline]] static query_scale round(const float* q, std::size_t dim,
                                                    std::uint32_t* out) noexcept {
        for (std::size_t d = 0; d < dim; d += 32, out += 4 * chunk_cells)
            spread(bf16_parts::to_bf16(load<Arch>(q + d), load<Arch>(q + d + 16)), out);
        return {};
    }
    [[gnu::always_inline]] static sum_type zero() noexcept { return _mm512_setzero_ps(); }
    [[gnu::always_inline]] static __m512i cell(__m512i x) noexcept { return x; }
    [[gnu::always_inline]] static sum_type add(sum_type sum, __m512i x, __m512i q) noexcept {
        return bf16_parts::add_products(sum, x, q);
    }
    [[gnu::always_inline]] static __m256 finish(__m256 sum, query_scale) noexcept { return sum; }
};
#endif

#ifdef KVTL_BYTE_PRODUCTS
template <class Arch> struct products<Arch, std::int8_t> {
    using sum_type = __m512i;
    struct query_scale { ///< the instruction takes unsigned bytes: codes are 128 too large
        float step = 0;
        std::int32_t excess = 0;
    };
    [[gnu::always_inline]] static query_scale round(const float* q, std::size_t dim,
                                                    std::uint32_t* out) noexcept {
        __m512 top = _mm512_setzero_ps();
        for (std::size_t d = 0; d < dim; d += 16)
            top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_loadu_ps(q + d)));
        const float largest = reduce_max<Arch>(top), step = largest / 127;
        // A query whose step is too small for a float has logits of 0, as codes of such rows have.
        const __m512 per_step =
            _mm512_set1_ps(step < std::numeric_limits<float>::min() ? 0.0F : 127 / largest);
        __m512i sum = _mm512_setzero_si512();
        for (std::size_t d = 0; d < dim; d += 64, out += 4 * chunk_cells) {
            const auto codes = [&](std::size_t at) __attribute__((always_inline)) {
                const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + d + at), per_step));
                sum = _mm512_add_epi32(sum, code);
                return _mm512_cvtsepi32_epi8(code);
            };
            const __m256i low = _mm256_set_m128i(codes(16), codes(0)),
                          high = _mm256_set_m128i(codes(48), codes(32));
            spread(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), out);
        }
        return {step, 128 * _mm512_reduce_add_epi32(sum)};
    }
    [[gnu::always_inline]] static sum_type zero() noexcept { return _mm512_setzero_si512(); }
    [[gnu::always_inline]] static __m512i cell(__m512i x) noexcept {
        return _mm512_xor_si512(x, _mm512_set1_epi8(static_cast<char>(-128)));
    }
    /// As intrinsic, gcc 12 would copy sums, as those of add_products().
    [[gnu::always_inline]] static sum_type add(sum_type sum, __m512i x, __m512i q) noexcept {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(q));
        return sum;
    }
    [[gnu::always_inline]] static __m256 finish(__m256i sum, query_scale scale) noexcept {
        const __m256i all = _mm256_sub_epi32(sum, _mm256_set1_epi32(scale.excess));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(all), _mm256_set1_ps(scale.step));
    }
};
#endif

/// The two halves of a register.
[[gnu::always_inline]] inline __m256 half(__m512 x, constant<0>) noexcept {
    return _mm512_castps512_ps256(x);
}
[[gnu::always_inline]] inline __m256 half(__m512 x, constant<1>) noexcept {
    return _mm512_extractf32x8_ps(x, 1);
}
[[gnu::always_inline]] inline __m256i half(__m512i x, constant<0>) noexcept {
    return _mm512_castsi512_si256(x);
}
[[gnu::always_inline]] inline __m256i half(__m512i x, constant<1>) noexcept {
    return _mm512_extracti32x8_epi32(x, 1);
}

/// out[g * out_stride + r] for Q queries that are spread, `next` cells apart, and the n <= 8 rows from row i on.
template <class Arch, std::size_t Q, number E, class Scale>
[[gnu::always_inline]] inline void tile(const std::uint32_t* query, std::size_t next, const Scale* scale,
                                        const rows_view<E>& rows, std::size_t i, std::size_t n, float* out,
                                        std::size_t out_stride) noexcept {
    using of = products<Arch, E>;
    constexpr std::size_t fours = rows_at_once / 4;
    typename of::sum_type sum[(Q + 1) / 2 * 2 * fours];
    unrolled<(Q + 1) / 2 * 2 * fours>([&](auto j) { sum[j] = of::zero(); });
    const std::size_t row_cells = rows.dim * sizeof(E) / 4;
    for (std::size_t c = 0; c < row_cells; c += chunk_cells) {
        __m512i x[rows_at_once];
        unrolled<rows_at_once>([&](
            auto r) __attribute__((always_inline)) { // the last row stands for those behind it
            const auto* row = reinterpret_cast<const char*>(rows.row(i + std::min<std::size_t>(r, n - 1)));
            x[r] = of::cell(_mm512_loadu_si512(row + 4 * c));
        });
        unrolled<fours>([&](auto four) __attribute__((always_inline)) { transpose_blocks(x + 4 * four); });
        unrolled<4>([&](auto j) __attribute__((always_inline)) {
            unrolled<Q>([&](auto g) __attribute__((always_inline)) {
                const __m512i q =
                    keep_register(_mm512_load_si512(query + g * next + 4 * c + j * chunk_cells));
                unrolled<fours>([&](auto four) __attribute__((always_inline)) {
                    auto& to = sum[g * fours + four];
                    to = of::add(to, x[4 * four + j], q);
                });
            });
        });
    }
    unrolled<(Q + 1) / 2>([&](auto two) {
        const auto both = add_blocks(sum + two * 2 * fours); // eight rows of two queries
        unrolled<2>([&](auto second) {
            constexpr std::size_t g = 2 * two + second;
            if constexpr (g < Q)
                _mm256_mask_storeu_ps(out + g * out_stride, static_cast<__mmask8>((1U << n) - 1),
                                      of::finish(half(both, second), scale[g]));
        });
    });
}

} // namespace relaxed

template <class Arch, number E>
KVTL_INLINE_KERNEL void round_queries(const float* q, std::size_t group, std::size_t q_stride,
                                      std::size_t dim, rounded_queries<Arch, E>& out) noexcept {
    for (std::size_t g = 0; g < group; ++g)
        out.scale[g] =
            relaxed::products<Arch, E>::round(q + g * q_stride, dim, out.cells + g * dim * sizeof(E));
}

template <class Arch, number E>
KVTL_INLINE_KERNEL void score_rounded(const rounded_queries<Arch, E>& q, std::size_t begin, std::size_t count,
                                      rows_view<E> rows, float* out, std::size_t out_stride) noexcept {
    const std::size_t next = rows.dim * sizeof(E);
    for (std::size_t i = 0; i < rows.count; i += relaxed::rows_at_once) {
        const std::size_t n = std::min(relaxed::rows_at_once, rows.count - i);
        ask_ahead<Arch>(rows, i, n);
        std::size_t g = 0;
        const auto against = [&](auto queries) __attribute__((always_inline)) {
            constexpr std::size_t Q = decltype(queries)::value;
            for (; g + Q <= count; g += Q)
                relaxed::tile<Arch, Q>(q.cells + (begin + g) * next, next, q.scale + begin + g, rows, i, n,
                                       out + g * out_stride + i, out_stride);
        };
        against(constant<8>{});
        against(constant<4>{});
        against(constant<2>{});
        against(constant<1>{});
    }
}

#ifdef KVTL_BF16_PAIRS
namespace relaxed {

/// acc[g][j] += sum over the rows of weight[g][row] * row[j] for Q queries and the 32 N numbers from `first` on. pairs:
/// (Q, attend_block / 2), the weights of two rows each.
template <class Arch, std::size_t Q, std::size_t N>
[[gnu::always_inline]] inline void sums(const std::uint32_t* pairs, const rows_view<bf16>& rows,
                                        std::size_t first, float* acc, std::size_t acc_stride) noexcept {
    constexpr std::size_t next = attend_block / 2;
    // Two rows side by side have the numbers of half of each 128 bits: 0 to 3, 8 to 11, .. and 4 to 7, 12 to 15, ..
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    __m512 sum[Q * 2 * N];
    unrolled<Q * N>([&](auto at) __attribute__((always_inline)) {
        const float* from = acc + at / N * acc_stride + first + at % N * 32;
        const __m512 a = _mm512_loadu_ps(from), b = _mm512_loadu_ps(from + 16);
        sum[2 * at] = _mm512_permutex2var_ps(a, low, b);
        sum[2 * at + 1] = _mm512_permutex2var_ps(a, high, b);
    });
    for (std::size_t r = 0; r < rows.count; r += 2) {
        if (first == 0) ask_ahead<Arch>(rows, r, 2);
        const bf16* const one = rows.row(r) + first;
        const bf16* const other = r + 1 < rows.count ? one + rows.stride : one; // with a weight of 0
        __m512i x[2 * N];
        unrolled<N>([&](auto j) __attribute__((always_inline)) {
            const __m512i a = _mm512_loadu_si512(one + 32 * j), b = _mm512_loadu_si512(other + 32 * j);
            x[2 * j] = keep_register(_mm512_unpacklo_epi16(a, b));
            x[2 * j + 1] = keep_register(_mm512_unpackhi_epi16(a, b));
        });
        unrolled<Q>([&](auto g) __attribute__((always_inline)) {
            const __m512i w = keep_register(_mm512_set1_epi32(static_cast<int>(pairs[g * next + r / 2])));
            unrolled<2 * N>([&](auto j) __attribute__((always_inline)) {
                sum[g * 2 * N + j] = bf16_parts::add_products(sum[g * 2 * N + j], x[j], w);
            });
        });
    }
    const __m512i first_half = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second_half = _mm512_add_epi32(first_half, _mm512_set1_epi32(8));
    unrolled<Q * N>([&](auto at) __attribute__((always_inline)) {
        float* to = acc + at / N * acc_stride + first + at % N * 32;
        _mm512_storeu_ps(to, _mm512_permutex2var_ps(sum[2 * at], first_half, sum[2 * at + 1]));
        _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(sum[2 * at], second_half, sum[2 * at + 1]));
    });
}

template <class Arch>
[[gnu::always_inline]] inline void accumulate_pairs(const float* weight, std::size_t group,
                                                    const rows_view<bf16>& rows, float* acc,
                                                    std::size_t acc_stride) noexcept {
    constexpr std::size_t at_once = 4;
    alignas(64) std::uint32_t pairs[at_once * attend_block / 2];
    const std::size_t low = std::min<std::size_t>(rows.count, 16), high = rows.count - low;
    const auto together = [&](auto queries) __attribute__((always_inline)) {
        constexpr std::size_t Q = decltype(queries)::value, N = 2;
        for (; group >= Q; group -= Q, weight += Q * attend_block, acc += Q * acc_stride) {
            for (std::size_t g = 0; g < Q; ++g)
                _mm512_store_si512(
                    pairs + g * attend_block / 2,
                    bf16_parts::to_bf16(load_part<Arch>(weight + g * attend_block, low),
                                        load_part<Arch>(weight + g * attend_block + 16, high)));
            for (std::size_t d = 0; d < rows.dim; d += 32 * N)
                sums<Arch, Q, N>(pairs, rows, d, acc, acc_stride);
        }
    };
    together(constant<4>{});
    together(constant<2>{});
    together(constant<1>{});
}

} // namespace relaxed
#endif

#ifdef KVTL_BYTE_PRODUCTS
namespace relaxed {

/// A block of rows of bytes by fours of rows: the four numbers of a column side by side, 64 columns in four registers. Register
/// j has in its b-th 128 bits the columns 16 b + 4 j and the three that follow.
inline constexpr std::size_t fours_of_block = attend_block / 4, four_cells = 4 * chunk_cells;
struct columns_by_four {
    alignas(64) std::uint32_t cells[bf16_query_dims / 64 * fours_of_block * four_cells];

    /// Registers of four `four` of the 64 columns from 64 * chunk on.
    [[nodiscard]] std::uint32_t* at(std::size_t chunk, std::size_t four) noexcept {
        return cells + (chunk * fours_of_block + four) * four_cells;
    }
    template <class Arch>
    [[gnu::always_inline]] void fill(const rows_view<std::int8_t>& rows, std::size_t fours) noexcept {
        for (std::size_t four = 0; four < fours; ++four) {
            const std::size_t first = 4 * four, n = std::min<std::size_t>(4, rows.count - first);
            ask_ahead<Arch>(rows, first, n);
            const std::int8_t* row[4]; // the last row stands for those behind it, with weights of 0
            for (std::size_t r = 0; r < 4; ++r) row[r] = rows.row(first + std::min(r, n - 1));
            for (std::size_t d = 0; d < rows.dim; d += 64) {
                const __m512i a = _mm512_loadu_si512(row[0] + d), b = _mm512_loadu_si512(row[1] + d),
                              c = _mm512_loadu_si512(row[2] + d), e = _mm512_loadu_si512(row[3] + d);
                const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b),
                              ce_low = _mm512_unpacklo_epi8(c, e), ce_high = _mm512_unpackhi_epi8(c, e);
                std::uint32_t* const to = at(d / 64, four);
                _mm512_store_si512(to, _mm512_unpacklo_epi16(ab_low, ce_low));
                _mm512_store_si512(to + chunk_cells, _mm512_unpackhi_epi16(ab_low, ce_low));
                _mm512_store_si512(to + 2 * chunk_cells, _mm512_unpacklo_epi16(ab_high, ce_high));
                _mm512_store_si512(to + 3 * chunk_cells, _mm512_unpackhi_epi16(ab_high, ce_high));
            }
        }
    }
};

/// The weights of one query for a block: code * step, a code being 256 high + low.
struct split_weights {
    alignas(32) std::uint32_t high[fours_of_block], low[fours_of_block]; ///< of four rows each
    float step = 0;

    /// weight: attend_block floats, of which n count; those are not negative.
    [[gnu::always_inline]] void split(const float* weight, std::size_t n) noexcept {
        const auto all = static_cast<std::uint32_t>((std::uint64_t{1} << n) - 1);
        const __m512 a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(all), weight),
                     b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(all >> 16), weight + 16);
        const float largest = _mm512_reduce_max_ps(_mm512_max_ps(a, b));
        constexpr float codes = 65535;
        // NaN where a weight is no finite number, else 0.
        const float poison = 0 * _mm512_reduce_add_ps(_mm512_add_ps(a, b));
        step = largest / codes + poison;
        // Without a finite one, products are no numbers, or too large. Those become 0x80000000, whose low bytes are 0.
        const __m512 per_step = _mm512_set1_ps(codes / largest);
        const auto put = [&](__m512 of, std::size_t half) __attribute__((always_inline)) {
            const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(of, per_step));
            _mm_store_si128(reinterpret_cast<__m128i*>(low) + half, _mm512_cvtepi32_epi8(code));
            _mm_store_si128(reinterpret_cast<__m128i*>(high) + half,
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
        };
        put(a, 0);
        put(b, 1);
    }
};

/// acc[g][j] += the weighted sums of Q queries for the 64 columns of `columns`.
template <class Arch, std::size_t Q>
[[gnu::always_inline]] inline void sums_of_columns(const split_weights* weights, const std::uint32_t* columns,
                                                   std::size_t fours, float* acc,
                                                   std::size_t acc_stride) noexcept {
    __m512i high[Q * 4], low[Q * 4];
    unrolled<Q * 4>([&](auto j) { high[j] = low[j] = _mm512_setzero_si512(); });
    const auto add = [](__m512i sum, __m512i w, __m512i x) __attribute__((always_inline)) {
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
        return sum;
    };
    for (std::size_t four = 0; four < fours; ++four, columns += four_cells) {
        __m512i x[4];
        unrolled<4>([&](auto j) __attribute__((always_inline)) {
            x[j] = keep_register(_mm512_load_si512(columns + j * chunk_cells));
        });
        unrolled<Q>([&](auto g) __attribute__((always_inline)) {
            const __m512i upper = _mm512_set1_epi32(static_cast<int>(weights[g].high[four])),
                          lower = _mm512_set1_epi32(static_cast<int>(weights[g].low[four]));
            unrolled<4>([&](auto j) __attribute__((always_inline)) {
                high[g * 4 + j] = add(high[g * 4 + j], upper, x[j]);
                low[g * 4 + j] = add(low[g * 4 + j], lower, x[j]);
            });
        });
    }
    unrolled<Q>([&](auto g) __attribute__((always_inline)) {
        __m512i sum[4]; // back in the columns' order: 128 bits from each
        unrolled<4>([&](auto j) {
            sum[j] = _mm512_add_epi32(_mm512_slli_epi32(high[g * 4 + j], 8), low[g * 4 + j]);
        });
        const __m512i a = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44),
                      b = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44),
                      c = _mm512_shuffle_i32x4(sum[0], sum[1], 0xEE),
                      d = _mm512_shuffle_i32x4(sum[2], sum[3], 0xEE);
        sum[0] = _mm512_shuffle_i32x4(a, b, 0x88);
        sum[1] = _mm512_shuffle_i32x4(a, b, 0xDD);
        sum[2] = _mm512_shuffle_i32x4(c, d, 0x88);
        sum[3] = _mm512_shuffle_i32x4(c, d, 0xDD);
        const __m512 step = _mm512_set1_ps(weights[g].step);
        unrolled<4>([&](auto j) __attribute__((always_inline)) {
            float* const to = acc + g * acc_stride + 16 * j;
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[j]), step, _mm512_loadu_ps(to)));
        });
    });
}

template <class Arch>
[[gnu::always_inline]] inline void accumulate_bytes(const float* weight, std::size_t group,
                                                    const rows_view<std::int8_t>& rows, float* acc,
                                                    std::size_t acc_stride) noexcept {
    constexpr std::size_t at_once = 8;
    const std::size_t fours = (rows.count + 3) / 4;
    columns_by_four columns;
    columns.template fill<Arch>(rows, fours);
    split_weights split[at_once];
    for (std::size_t first = 0; first < group; first += at_once) {
        const std::size_t n = std::min(at_once, group - first);
        for (std::size_t g = 0; g < n; ++g) split[g].split(weight + (first + g) * attend_block, rows.count);
        for (std::size_t d = 0; d < rows.dim; d += 64) {
            float* const to = acc + first * acc_stride + d;
            std::size_t g = 0;
            for (; g + 2 <= n; g += 2)
                sums_of_columns<Arch, 2>(split + g, columns.at(d / 64, 0), fours, to + g * acc_stride,
                                         acc_stride);
            if (g < n)
                sums_of_columns<Arch, 1>(split + g, columns.at(d / 64, 0), fours, to + g * acc_stride,
                                         acc_stride);
        }
    }
}

} // namespace relaxed
#endif

template <class Arch, number E>
KVTL_INLINE_KERNEL void accumulate_relaxed(const float* weight, std::size_t group, rows_view<E> rows,
                                           float* acc, std::size_t acc_stride) noexcept {
    static_assert(has_relaxed_products<Arch, E>);
    static_assert(attend_block == 32); // weights of a block are two registers
#ifdef KVTL_BF16_PAIRS
    if constexpr (std::is_same_v<E, bf16>)
        relaxed::accumulate_pairs<Arch>(weight, group, rows, acc, acc_stride);
#endif
#ifdef KVTL_BYTE_PRODUCTS
    if constexpr (std::is_same_v<E, std::int8_t>)
        relaxed::accumulate_bytes<Arch>(weight, group, rows, acc, acc_stride);
#endif
}

#ifdef KVTL_INSTANCE
#define KVTL_RELAXED(E)                                                                                      \
    KVTL_INSTANCE void round_queries<default_arch, E>(const float*, std::size_t, std::size_t, std::size_t,   \
                                                      rounded_queries<default_arch, E>&) noexcept;           \
    KVTL_INSTANCE void score_rounded<default_arch, E>(const rounded_queries<default_arch, E>&, std::size_t,  \
                                                      std::size_t, rows_view<E>, float*,                     \
                                                      std::size_t) noexcept;                                 \
    KVTL_INSTANCE void accumulate_relaxed<default_arch, E>(const float*, std::size_t, rows_view<E>, float*,  \
                                                           std::size_t) noexcept;
#ifdef KVTL_BF16_PAIRS
KVTL_RELAXED(bf16)
#endif
#ifdef KVTL_BYTE_PRODUCTS
KVTL_RELAXED(std::int8_t)
#endif
#undef KVTL_RELAXED
#endif

#endif
#undef KVTL_BYTE_PRODUCTS
#undef KVTL_BF16_PAIRS

}}} // namespace kvtl::v0::simd
