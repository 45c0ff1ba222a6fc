// The register block behind dot.hpp and distance.hpp: a few rows against a few queries at once.
//
// What:   every row is loaded and converted once per block of queries, every query once per block of
//         rows. One register accumulates each (query, row) pair over the dimensions; the lanes are
//         summed once, at the end, for a whole register of pairs.
// Shapes: queries (Q,D) f32, rows (R,D) of E (a number or a code), sums (Q,R).
// Cost:   R * Q multiply-adds per register of dimensions, and three instructions per pair for the final sums.
// Limits: a pair's sum does not depend on its place in the block: blocks may overlap, and results are
//         the same bits however the rows are cut into calls.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/codes.hpp>
#include <kvtl/simd/unroll.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace kvtl { inline namespace v0 { namespace simd {

/// sum + q * x
struct product {
    static constexpr bool takes_pairs =
        false; ///< four queries put in order cost what conversions of four rows cost
    template <class Arch>
    [[gnu::always_inline]] static floats<Arch> step(const floats<Arch>& q, const floats<Arch>& x,
                                                    const floats<Arch>& sum) noexcept {
        return fma<Arch>(q, x, sum);
    }
};

/// sum + (q - x)^2
struct squared_difference {
    static constexpr bool takes_pairs = true;
    template <class Arch>
    [[gnu::always_inline]] static floats<Arch> step(const floats<Arch>& q, const floats<Arch>& x,
                                                    const floats<Arch>& sum) noexcept {
        const floats<Arch> difference = q - x;
        return fma<Arch>(difference, difference, sum);
    }
};

/// Pairs that a block holds: one register of sums, but at least eight to hide the latency of a multiply-add.
template <class Arch>
inline constexpr std::size_t tile_pairs = floats_per_register<Arch> < 8 ? 8 : floats_per_register<Arch>;

/// Rows of `rows` that fit so many bytes are asked for ahead of their use: as far as memory answers while they are computed
/// with, and near enough for the L2 cache. A processor's own prefetcher follows wide loads but not blocks of rows side by
/// side between which time passes; asked for in bursts, or into the L1 cache, rows come no faster than without.
inline constexpr std::size_t ahead_bytes = 8192;

/// Rows of so many numbers are asked for in long runs only: in a page of them looking whether to ask costs more than it gains.
inline constexpr std::size_t short_rows = 64;
inline constexpr std::size_t long_run_bytes = std::size_t{64} << 10;

template <number E> [[nodiscard]] constexpr std::size_t run_bytes(const rows_view<E>& rows) noexcept {
    return (rows.count + rows.following) * rows.dim * sizeof(E);
}
/// Whether ask_ahead() may ask for rows of a run.
template <number E> [[nodiscard]] constexpr bool asks_ahead(const rows_view<E>& rows) noexcept {
    return rows.dim > short_rows || run_bytes(rows) > long_run_bytes;
}

/// Asks for n rows some way behind row i, if there are so many. How far is computed each time: once per call was slower
/// (bench/DEAD_ENDS.md).
template <class Arch, number E>
[[gnu::always_inline]] inline void ask_ahead(const rows_view<E>& rows, std::size_t i,
                                             std::size_t n) noexcept {
    if (!asks_ahead(rows)) return;
    const std::size_t bytes = rows.dim * sizeof(E), first = i + ahead_bytes / bytes;
    if (first + n > rows.count + rows.following) return;
    for (std::size_t r = first; r < first + n; ++r)
        for (std::size_t at = 0; at < bytes; at += 64)
            prefetch_later<Arch>(reinterpret_cast<const char*>(rows.row(r)) + at);
}

/// Rows that attention scores, weighs and adds up together: long enough to hide a look at the maximum, short enough that K and V
/// fit the L1 cache.
inline constexpr std::size_t attend_block = 32;

/// Registers that hold the sums of R * Q pairs, one each, in whole groups that are added up together.
template <class Arch, std::size_t R, std::size_t Q>
inline constexpr std::size_t
    sums_of = (R * Q + floats_per_register<Arch> - 1) / floats_per_register<Arch>* floats_per_register<Arch>;

/// out[g * out_stride + r] = the sum of the lanes of sum[g * R + r], for g < Q and r < R.
template <class Arch, std::size_t R, std::size_t Q>
[[gnu::always_inline]] inline void store_sums(const floats<Arch>* sum, float* out,
                                              std::size_t out_stride) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    unrolled<sums_of<Arch, R, Q> / lane_count>([&](auto i) __attribute__((always_inline)) {
        const floats<Arch> finished = reduce_add_each<Arch>(sum + i * lane_count);
        if constexpr (R * Q % lane_count == 0 && (lane_count % R == 0 || R % lane_count == 0)) {
            constexpr std::size_t pair = i * lane_count; // the first of a register's
            store_rows<Arch, R>(out + pair / R * out_stride + pair % R, out_stride, finished);
        } else {
            float all[lane_count];
            store<Arch>(all, finished);
            unrolled<lane_count>([&](auto j) {
                constexpr std::size_t pair = i * lane_count + j;
                if constexpr (pair < R * Q) out[pair / R * out_stride + pair % R] = all[j];
            });
        }
    });
}

/// Rows of R that meet Q queries side by side: four, because the prefetcher follows a few streams from memory, not sixteen. A
/// single query is bound by memory anyway, which gives up to twice as much where there are two streams, unless rows are
/// known to be short.
template <std::size_t R, std::size_t Q, std::size_t KnownDim = 0>
inline constexpr std::size_t
    side_by_side = std::min<std::size_t>(R, Q == 1 && (KnownDim == 0 || KnownDim > short_rows) ? 2 : 4);

/// Not bytes and bf16: what is done to a row takes longer than it takes to come, unless another is beside it.
template <number E> inline constexpr bool may_stream = std::is_same_v<E, float> || std::is_same_v<E, f16>;

/// Whether a single query asks for each row of a run as many bytes ahead as memory needs, and reads rows in one stream if it
/// may: those of a run that no L2 cache holds; and long ones, of which two side by side come from memory at half of its
/// bandwidth, however few there are. One stream is up to 1.7 times as fast from memory as two, from the L3 cache up to a
/// third slower; asking makes up to 1.7 times as much of it where a core follows one stream slowly (Emerald Rapids).
template <number E> [[nodiscard]] constexpr bool streamed(const rows_view<E>& rows) noexcept {
    return (may_stream<E> && rows.dim > 128) || run_bytes(rows) > streamed_bytes;
}

/// out[g * out_stride + r] = Op over the dimensions of query g and row r, for g < Q and r < R.
template <class Arch, class Op, std::size_t R, std::size_t Q, bool Streamed = false, number E, class Dim>
[[gnu::always_inline]] inline void tile(const float* q, std::size_t q_stride, const E* rows,
                                        std::size_t row_stride, Dim dim, float* out,
                                        std::size_t out_stride) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[sums_of<Arch, R, Q>];
    unrolled<sums_of<Arch, R, Q>>([&](auto i) { sum[i] = F(0.0F); });

    // The long f32 rows are read one after the other where there is one query and a constant dimension makes straight
    // code of each.
    constexpr std::size_t known = [] {
        if constexpr (std::is_same_v<Dim, std::size_t>)
            return std::size_t{0};
        else
            return std::size_t{Dim::value};
    }();
    constexpr bool one_by_one = (Streamed && may_stream<E>) || (Q == 1 && sizeof(E) == 4 && known != 0);
    constexpr std::size_t S = one_by_one ? 1 : side_by_side<R, Q, known>;
    unrolled<R / S>([&](auto block) __attribute__((always_inline)) {
        const auto step = [&](auto load_from, std::size_t d) __attribute__((always_inline)) {
            F query[Q];
            unrolled<Q>([&](auto g) { query[g] = keep<Arch>(load_from(q + g * q_stride + d)); });
            unrolled<S>([&](auto s) {
                constexpr std::size_t r = block * S + s;
                const F x = keep<Arch>(load_from(rows + r * row_stride + d));
                unrolled<Q>(
                    [&](auto g) { sum[g * R + r] = Op::template step<Arch>(query[g], x, sum[g * R + r]); });
            });
        };
        // A loop, not a function: gcc drops calls of those whose only effect is to ask.
        if constexpr (Streamed)
            for (std::size_t r = block * S; r < block * S + S; ++r)
                for (std::size_t at = 0; at < dim * sizeof(E); at += 64)
                    prefetch_later<Arch>(reinterpret_cast<const char*>(rows + r * row_stride) +
                                         stream_ahead_bytes + at);
        std::size_t d = 0;
        if constexpr (Op::takes_pairs && loads_pairs<Arch, E>)
            for (; d + 2 * lane_count <= dim; d += 2 * lane_count) {
                register_pair<Arch> query[Q];
                unrolled<Q>([&](auto g) { query[g] = load_pair<Arch>(q + g * q_stride + d); });
                unrolled<S>([&](auto s) {
                    constexpr std::size_t r = block * S + s;
                    const register_pair<Arch> x = load_pair<Arch>(rows + r * row_stride + d);
                    unrolled<Q>([&](auto g) {
                        const F partly = Op::template step<Arch>(query[g].first, x.first, sum[g * R + r]);
                        sum[g * R + r] = Op::template step<Arch>(query[g].second, x.second, partly);
                    });
                });
            }
        for (; d + lane_count <= dim; d += lane_count)
            step(
                [](const auto* p) __attribute__((always_inline)) { return load<Arch>(p); }, d);
        if (const std::size_t rest = dim - d; rest != 0)
            step(
                [rest](const auto* p) __attribute__((always_inline)) { return load_part<Arch>(p, rest); }, d);
    });

    store_sums<Arch, R, Q>(sum, out, out_stride);
}

/// f(i) for the first row i of each block of R; the last block reaches back over rows that are done already.
template <std::size_t R, class F>
[[gnu::always_inline]] inline void for_row_blocks(std::size_t rows, F&& f) noexcept {
    for (std::size_t done = 0; done < rows; done += R) f(done + R <= rows ? done : rows - R);
}

/// out[i] for one query and all rows i. Attention comes four rows at a time, scores come many: both are worth a constant
/// dimension.
template <class Arch, class Op, number E>
KVTL_INLINE_KERNEL void tile_rows(const float* q, rows_view<E> rows, float* out) noexcept {
    const auto sweep = [&](auto block, auto dim, auto in_one_stream) {
        constexpr std::size_t R = decltype(block)::value;
        for_row_blocks<R>(rows.count, [&](std::size_t i) {
            if (std::is_same_v<E, bf16> && in_one_stream == 0 && rows.dim > 128)
                ask_ahead<Arch>(rows, i, R); // shorter rows lose
            tile<Arch, Op, R, 1, in_one_stream != 0>(q, 0, rows.row(i), rows.stride, dim, out + i, 0);
        });
    };
    if (rows.count < 4) return sweep(constant<1>{}, rows.dim, constant<0>{});
    // f32 rows of constant length are read so anyway.
    if (rows.count >= tile_pairs<Arch> && streamed(rows) && !(sizeof(E) == 4 && is_common_dim(rows.dim)))
        return sweep(constant<tile_pairs<Arch>>{}, rows.dim, constant<1>{});
    with_dim(rows.dim, [&](auto dim) {
        if (rows.count >= tile_pairs<Arch>)
            sweep(constant<tile_pairs<Arch>>{}, dim, constant<0>{});
        else
            sweep(constant<4>{}, dim, constant<0>{});
    });
}

/// The same for a group of four, the most common one. In the loop for any group its counters lived in vector registers, which
/// counts where a call has no more than a page of rows.
template <class Arch, class Op, number E>
[[gnu::noinline]] void tile_four(const float* q, std::size_t q_stride, rows_view<E> rows, float* out,
                                 std::size_t out_stride) noexcept {
    constexpr std::size_t R = tile_pairs<Arch> / 4;
    for_row_blocks<R>(
        rows.count, [=](std::size_t i) __attribute__((always_inline)) {
            ask_ahead<Arch>(rows, i, R);
            tile<Arch, Op, R, 4>(q, q_stride, rows.row(i), rows.stride, rows.dim, out + i, out_stride);
        });
}

/// out[g * out_stride + i] for all queries g and rows i: a block of rows meets four queries at a time. The
/// dimension is no constant here: it would gain a few per cent and multiply the code by five.
template <class Arch, class Op, number E>
KVTL_INLINE_KERNEL void tile_group(const float* q, std::size_t group, std::size_t q_stride, rows_view<E> rows,
                                   float* out, std::size_t out_stride) noexcept {
    constexpr std::size_t R = tile_pairs<Arch> / 4;
    if (group == 1 || rows.count < R) {
        for (std::size_t g = 0; g < group; ++g)
            tile_rows<Arch, Op>(q + g * q_stride, rows, out + g * out_stride);
        return;
    }
    if (group == 4) return tile_four<Arch, Op>(q, q_stride, rows, out, out_stride);
    // Everything by value: what is behind a reference would be read again after every store.
    for_row_blocks<R>(
        rows.count, [=](std::size_t i) __attribute__((always_inline)) {
            ask_ahead<Arch>(rows, i, R);
            const E* row = rows.row(i);
            const float* query = q;
            float* to = out + i;
            const auto against = [&](auto queries) __attribute__((always_inline)) {
                tile<Arch, Op, R, decltype(queries)::value>(query, q_stride, row, rows.stride, rows.dim, to,
                                                            out_stride);
            };
            std::size_t left = group;
            for (; left >= 4; left -= 4, query += 4 * q_stride, to += 4 * out_stride) against(constant<4>{});
            if (left == 3) against(constant<3>{});
            if (left == 2) against(constant<2>{});
            if (left == 1) against(constant<1>{});
        });
}

#ifdef KVTL_INSTANCE
#define KVTL_TILES(Op, E)                                                                                    \
    KVTL_INSTANCE void tile_rows<default_arch, Op, E>(const float*, rows_view<E>, float*) noexcept;          \
    KVTL_INSTANCE void tile_group<default_arch, Op, E>(const float*, std::size_t, std::size_t, rows_view<E>, \
                                                       float*, std::size_t) noexcept;
KVTL_TILES(product, float)
KVTL_TILES(product, f16)
KVTL_TILES(product, bf16)
KVTL_TILES(product, std::int8_t)
KVTL_TILES(product, e4m3)
KVTL_TILES(squared_difference, float)
KVTL_TILES(squared_difference, f16)
KVTL_TILES(squared_difference, bf16)
#undef KVTL_TILES
#endif

}}} // namespace kvtl::v0::simd
