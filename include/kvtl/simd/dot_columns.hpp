// Inner products of f32 queries with short stored rows that lie column by column, 16 rows at a time.
//
// A row of some 32 numbers is over before a kernel that runs along it has paid for adding up its lanes
// (dot.hpp: three instructions per pair, as many as the products). Across 16 rows there is nothing to add up.
//
// Shapes: q (G,D); rows in blocks of 16, block b holds number c of row 16 b + i at (16 b W + 16 c + i), W the
//         numbers per row, of which D from `first` on take part; out (G,N).
// Cost:   N * G * D multiply-adds; a number comes from memory once for four queries. A single query goes block by block where
//         they take streamed_bytes or more, and asks ahead: from memory 1.4 times as fast as four side by side or more, in
//         cache a third slower.
// Limits: f32 sums; any D, G and N. The last block is read whole: it must be there. A row's sum has the same
//         bits wherever the row stands and whatever the group.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 { namespace simd {

inline constexpr std::size_t column_block = 16; ///< rows

/// `count` rows of which `columns` numbers from `first` on are looked at.
template <element E> struct columns_view {
    const E* data = nullptr;
    std::size_t count = 0;   ///< N
    std::size_t width = 0;   ///< W
    std::size_t first = 0;   ///< first column
    std::size_t columns = 0; ///< D
};

/// Q queries with B blocks that begin at `rows`; the last block gives `last` numbers per query. Streamed: asks for what lies
/// stream_ahead_bytes behind each column.
template <class Arch, std::size_t Q, std::size_t B, bool Streamed = false, element E>
[[gnu::always_inline]] inline void column_tile(const float* q, std::size_t q_stride, const E* rows,
                                               std::size_t block_stride, std::size_t columns, float* out,
                                               std::size_t out_stride, std::size_t last) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>,
                          V = column_block / lane_count; // registers per block
    F sum[Q * B * V];
    unrolled<Q * B * V>([&](auto i) { sum[i] = F(0.0F); });
    for (std::size_t c = 0; c < columns; ++c) {
        if (const std::size_t at = c * column_block * sizeof(E); Streamed && at % 64 == 0)
            prefetch_later<Arch>(reinterpret_cast<const char*>(rows) + stream_ahead_bytes + at);
        unrolled<B * V>([&](auto i) __attribute__((always_inline)) {
            const F x =
                keep<Arch>(load<Arch>(rows + i / V * block_stride + c * column_block + i % V * lane_count));
            unrolled<Q>([&](auto g) __attribute__((always_inline)) {
                sum[g * B * V + i] = fma<Arch>(F(q[g * q_stride + c]), x, sum[g * B * V + i]);
            });
        });
    }
    unrolled<Q>([&](auto g) __attribute__((always_inline)) {
        unrolled<B * V>([&](auto i) __attribute__((always_inline)) {
            const std::size_t at = i * lane_count, end = (B - 1) * column_block + last;
            if (at + lane_count <= end)
                store<Arch>(out + g * out_stride + at, sum[g * B * V + i]);
            else if (at < end)
                store_part<Arch>(out + g * out_stride + at, sum[g * B * V + i], end - at);
        });
    });
}

/// out[g * out_stride + i] = q_g . rows[i], where q_g = q + g * q_stride and g < group
template <class Arch = default_arch, element E>
inline void dot_columns(const float* q, std::size_t group, std::size_t q_stride, const columns_view<E>& rows,
                        float* out, std::size_t out_stride) noexcept {
    // As many sums as stay in registers and hide the latency of a multiply-add: 4 x 2 of 16 lanes, 4 x 2
    // of 8 (16 registers: a block takes two), and where a block takes four, two queries at a time.
    constexpr std::size_t V = column_block / floats_per_register<Arch>, most = V == 4 ? 2 : 4,
                          B = V == 1 ? 4 : 1;
    const std::size_t stride = column_block * rows.width,
                      blocks = (rows.count + column_block - 1) / column_block;
    const bool in_one_stream = rows.columns == rows.width && blocks * stride * sizeof(E) >= streamed_bytes;
    const E* const from = rows.data + rows.first * column_block;
    const auto sweep = [&](auto queries, std::size_t g) {
        constexpr std::size_t Q = decltype(queries)::value;
        std::size_t b = 0;
        const auto tile = [&](auto count, auto streamed) {
            constexpr std::size_t n = decltype(count)::value;
            const std::size_t row = b * column_block;
            column_tile<Arch, Q, n, streamed != 0>(
                q + g * q_stride, q_stride, from + b * stride, stride, rows.columns,
                out + g * out_stride + row, out_stride,
                std::min(column_block, rows.count - row - (n - 1) * column_block));
            b += n;
        };
        if (Q == 1 && in_one_stream)
            while (b < blocks) tile(constant<1>{}, constant<1>{});
        while (b + B <= blocks) tile(constant<B>{}, constant<0>{});
        while (b < blocks) tile(constant<1>{}, constant<0>{});
    };
    std::size_t g = 0;
    for (; g + most <= group; g += most) sweep(constant<most>{}, g);
    if (most == 4 && group - g >= 2) sweep(constant<2>{}, g), g += 2;
    if (g < group) sweep(constant<1>{}, g);
}

}}} // namespace kvtl::v0::simd
