// Exact causal attention of a prefill chunk, for one KV head.
//
// What:   query t of the chunk (G heads) sees keys 0 .. first + t, or the last `reach` of these. The T * G query rows are taken 64 at a
//         time, the keys in blocks of 64 at fixed places; only one 64 x 64 tile of logits exists at any time.
//         Query rows lie across the lanes, so that the maximum and the sum of a row need no operation
//         between lanes.
// Shapes: q, out (T, G, D) float, f16 or bf16, G * D numbers together and a stride from t to t; keys, values
//         (>= first + T, D) of E. Queries are widened as a tile takes them, results rounded as it stores them.
// Cost:   4 D flops per visible pair of query row and key, near the peak of a core. Scratch: 81 KiB at D
// = 64. Limits: rule.scale > 0, everything finite, any D, G >= 1. A query's result has the same bits however the
// prompt
//         is cut into chunks: no step mixes query rows, key blocks lie at absolute positions, and what
//         follows the last visible key only adds exact zeros.
// Source: the online softmax and the tiling of FlashAttention-2 (Dao, 2023), laid out for the vector
//         registers of a CPU.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/unroll.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvtl { inline namespace v0 { namespace simd {

/// A query sees all that came before it.
inline constexpr std::size_t no_reach = std::numeric_limits<std::size_t>::max();

/// Keys [begin, end) of those that the queries see, and what the stretches before have left of each query: all of them
/// together, in order, give the bits of one call. `begin` and `end` are multiples of causal_tile, or the end of all.
struct causal_stretch {
    std::size_t begin = 0, end = no_reach;
    float *max = nullptr, *sum = nullptr; ///< (T, G); null where there is one stretch
    float* acc = nullptr;                 ///< (T, G, D); null: in `out`, which must be floats then
    const float* log_weight = nullptr;    ///< of each key from `begin` on, added to its logit; null: all 0
};

/// Query rows of a tile, and keys of a block.
inline constexpr std::size_t causal_tile = 64;

/// D rounded up to whole registers of every architecture: rows inside scratch end in zeros instead of special
/// cases.
[[nodiscard]] constexpr std::size_t causal_padded(std::size_t dim) noexcept {
    return (dim + 15) / 16 * 16;
}

/// Floats of scratch that attend_causal needs, wherever it begins.
[[nodiscard]] constexpr std::size_t causal_scratch_floats(std::size_t dim) noexcept {
    return causal_tile * (4 * causal_padded(dim) + causal_tile + 5) + 15;
}

/// The memory of a tile of query rows and a block of keys; P is the padded D.
struct causal_buffers {
    float* qt;      ///< (P, 64) queries times scale, transposed
    float* k;       ///< (64, P)
    float* v;       ///< (64, P)
    float* acc;     ///< (64, P) weighted values of each query row
    float* s;       ///< (64, 64) logits, then weights: s[key][query row]
    float* max;     ///< (64) largest logit of each query row
    float* sum;     ///< (64) sum of its weights
    float* shrink;  ///< (64) what the last block's maximum makes of its sum and acc
    float* visible; ///< (64) it sees keys of the block up to this one
    float* hidden;  ///< (64) and from this one on

    /// Everything starts on a cache line: registers that straddle two cost a third of the speed.
    causal_buffers(float* memory, std::size_t padded) noexcept
        : qt(memory + (64 - reinterpret_cast<std::uintptr_t>(memory) % 64) % 64 / sizeof(float)),
          k(qt + causal_tile * padded), v(k + causal_tile * padded), acc(v + causal_tile * padded),
          s(acc + causal_tile * padded), max(s + causal_tile * causal_tile), sum(max + causal_tile),
          shrink(sum + causal_tile), visible(shrink + causal_tile), hidden(visible + causal_tile) {}
};

/// to[d * 64 + i] = scale * rows[i][d] for d < dim: four rows become columns of queries.
inline void causal_columns(const std::array<const float*, 4>& rows, std::size_t dim, float scale,
                           float* to) noexcept {
    using quad = xsimd::make_sized_batch_t<float, 4>;
    std::size_t d = 0;
    for (; d + 4 <= dim; d += 4, to += 4 * causal_tile) {
        quad x[4];
        for (std::size_t i = 0; i < 4; ++i) x[i] = quad::load_unaligned(rows[i] + d) * quad(scale);
        const quad even_low = xsimd::zip_lo(x[0], x[2]), odd_low = xsimd::zip_lo(x[1], x[3]),
                   even_high = xsimd::zip_hi(x[0], x[2]), odd_high = xsimd::zip_hi(x[1], x[3]);
        xsimd::zip_lo(even_low, odd_low).store_unaligned(to);
        xsimd::zip_hi(even_low, odd_low).store_unaligned(to + causal_tile);
        xsimd::zip_lo(even_high, odd_high).store_unaligned(to + 2 * causal_tile);
        xsimd::zip_hi(even_high, odd_high).store_unaligned(to + 3 * causal_tile);
    }
    for (; d < dim; ++d, to += causal_tile)
        for (std::size_t i = 0; i < 4; ++i) to[i] = rows[i][d] * scale;
}

/// Both products keep 4 rows by this many registers of sums. 16 sums hide the latency of a multiply-add, but
/// where there are 16 registers in all (SSE, AVX), 8 must do.
template <class Arch>
inline constexpr std::size_t causal_width =
    floats_per_register<Arch> == 16 || std::derived_from<Arch, xsimd::neon> ? 4 : 2;

/// s[key][row] = k[key] . q[row] for the block's keys, in fours: up to 3 rows of s behind them become
/// meaningless.
template <class Arch>
void causal_logits(const causal_buffers& b, std::size_t rows, std::size_t keys, std::size_t padded) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t width = causal_width<Arch>;
    for (std::size_t first = 0; first < rows; first += width * floats_per_register<Arch>)
        for (std::size_t key = 0; key < keys; key += 4) {
            const float* k = b.k + key * padded;
            F sum[4 * width];
            unrolled<4 * width>([&](auto i) { sum[i] = F(0.0F); });
            for (std::size_t d = 0; d < padded; ++d) {
                F q[width];
                unrolled<width>([&](auto j) {
                    q[j] = keep<Arch>(
                        load<Arch>(b.qt + d * causal_tile + first + j * floats_per_register<Arch>));
                });
                unrolled<4>([&](auto r) {
                    const F x = keep<Arch>(F(k[r * padded + d]));
                    unrolled<width>(
                        [&](auto j) { sum[r * width + j] = fma<Arch>(x, q[j], sum[r * width + j]); });
                });
            }
            unrolled<4 * width>([&](auto i) {
                store<Arch>(b.s + (key + i / width) * causal_tile + first +
                                i % width * floats_per_register<Arch>,
                            sum[i]);
            });
        }
}

/// Logits to weights in place, with max, sum and shrink of the query rows brought up to date. all_visible: every row sees all
/// keys, and b.visible and b.hidden are not read. log_weight: (keys) or null.
template <class Arch>
void causal_weights(const causal_buffers& b, std::size_t rows, std::size_t keys, bool all_visible, float cap,
                    const float* log_weight) noexcept {
    using F = floats<Arch>;
    const F nothing(-std::numeric_limits<float>::infinity());
    for (std::size_t first = 0; first < rows; first += floats_per_register<Arch>) {
        float* s = b.s + first;
        const F old_max = load<Arch>(b.max + first);
        F max = old_max;
        if (all_visible && cap == 0 && log_weight == nullptr) {
            for (std::size_t key = 0; key < keys; ++key)
                max = xsimd::max(max, load<Arch>(s + key * causal_tile));
        } else {
            const F all(static_cast<float>(keys));
            const F visible = all_visible ? all : load<Arch>(b.visible + first),
                    hidden = all_visible ? F(0.0F) : load<Arch>(b.hidden + first);
            for (std::size_t key = 0; key < keys; ++key) {
                const F number(static_cast<float>(key));
                F logit = load<Arch>(s + key * causal_tile);
                if (cap > 0) logit = kvtl::detail::capped<Arch>(logit, cap);
                if (log_weight != nullptr) logit = logit + F(log_weight[key]);
                logit = xsimd::select((number < visible) & (number >= hidden), logit, nothing);
                max = xsimd::max(max, logit);
                store<Arch>(s + key * causal_tile, logit);
            }
        }
        // A query that slides may have seen nothing yet: -inf - -inf would be no number.
        const F shift = xsimd::select(max > nothing, max, F(0.0F));
        F sum(0.0F);
        for (std::size_t key = 0; key < keys; ++key) {
            const F weight = exp<Arch>(load<Arch>(s + key * causal_tile) - shift);
            sum = sum + weight;
            store<Arch>(s + key * causal_tile, weight);
        }
        const F shrink = exp<Arch>(old_max - shift); // exactly 1 where the maximum stays
        store<Arch>(b.max + first, max);
        store<Arch>(b.sum + first, fma<Arch>(load<Arch>(b.sum + first), shrink, sum));
        store<Arch>(b.shrink + first, shrink);
    }
}

/// acc[row] = shrink * acc[row] + sum over keys of s[key][row] * v[key], for N registers of each row from
/// `first` on.
template <class Arch, std::size_t N>
void causal_values(const causal_buffers& b, std::size_t rows, std::size_t keys, std::size_t padded,
                   std::size_t first) noexcept {
    using F = floats<Arch>;
    for (std::size_t row = 0; row < rows; row += 4) {
        float* acc = b.acc + row * padded + first;
        F sum[4 * N];
        unrolled<4 * N>([&](auto i) {
            sum[i] = F(b.shrink[row + i / N]) *
                     load<Arch>(acc + i / N * padded + i % N * floats_per_register<Arch>);
        });
        for (std::size_t key = 0; key < keys; ++key) {
            const float* weight = b.s + key * causal_tile + row;
            F v[N];
            unrolled<N>([&](auto j) {
                v[j] = keep<Arch>(load<Arch>(b.v + key * padded + first + j * floats_per_register<Arch>));
            });
            unrolled<4>([&](auto r) {
                const F w = keep<Arch>(F(weight[r]));
                unrolled<N>([&](auto j) { sum[r * N + j] = fma<Arch>(w, v[j], sum[r * N + j]); });
            });
        }
        unrolled<4 * N>(
            [&](auto i) { store<Arch>(acc + i / N * padded + i % N * floats_per_register<Arch>, sum[i]); });
    }
}

/// One tile of query rows against one block of keys.
template <class Arch>
void causal_block(const causal_buffers& b, std::size_t rows, std::size_t keys, std::size_t padded,
                  bool all_visible, float cap, const float* log_weight) noexcept {
    causal_logits<Arch>(b, rows, keys, padded);
    causal_weights<Arch>(b, rows, keys, all_visible, cap, log_weight);
    std::size_t first = 0;
    constexpr std::size_t width = causal_width<Arch>;
    for (; first + width * floats_per_register<Arch> <= padded; first += width * floats_per_register<Arch>)
        causal_values<Arch, width>(b, rows, keys, padded, first);
    for (; first < padded; first += floats_per_register<Arch>)
        causal_values<Arch, 1>(b, rows, keys, padded, first);
}

/// out[t][g] = attention of query (t, g) at q[t * q_row_stride + g * D] over keys 0 .. first + t, for t <
/// queries. `first` is the number of keys that precede the chunk; `out` is laid out like q with its own
/// stride. sink_logits: (G) as add_sink_logits (attention.hpp) takes them, or null. Of a stretch, keys and values are
/// those from stretch.begin on, and there is no reach.
template <class Arch = default_arch, element E>
void attend_causal(const tensor_view& q, std::size_t q_row_stride, std::size_t group, const logit_rule& rule,
                   std::size_t queries, rows_view<E> keys, rows_view<E> values, std::size_t first,
                   const tensor_span& out, std::size_t out_row_stride, std::span<float> scratch,
                   std::size_t reach = no_reach, const float* sink_logits = nullptr,
                   const causal_stretch& stretch = {}) noexcept {
    const std::size_t dim = keys.dim;
    const std::size_t padded = causal_padded(dim);
    assert(stretch.begin + keys.count >= std::min(stretch.end, first + queries) &&
           keys.count == values.count);
    assert(values.dim == dim && (stretch.begin == 0 || reach == no_reach));
    assert(scratch.size() >= causal_scratch_floats(dim));
    assert(stretch.max == nullptr || stretch.acc != nullptr || out.holds<float>());
    const causal_buffers b(scratch.data(), padded);
    if (padded != dim) // the padding is never written again
        std::fill_n(scratch.data(), causal_scratch_floats(dim), 0.0F);

    const std::size_t all_rows = queries * group;
    for (std::size_t tile = 0; tile < all_rows; tile += causal_tile) {
        const std::size_t rows =
            std::min(causal_tile, all_rows - tile); // the last stands for those behind it
        std::array<std::size_t, causal_tile> sees;  // a query row sees the keys before this one
        for (std::size_t row = 0; row < causal_tile; ++row)
            sees[row] = first + (tile + std::min(row, rows - 1)) / group + 1;
        const auto offset = [&](std::size_t row, std::size_t stride) {
            return (tile + row) / group * stride + (tile + row) % group * dim;
        };
        const auto left_of = [&](std::size_t row) { // sums between two stretches
            return stretch.acc == nullptr ? out.as<float>() + offset(row, out_row_stride)
                                          : stretch.acc + (tile + row) * dim;
        };
        const std::size_t end = sees.back(); // keys that the tile's last query sees
        if (end <= stretch.begin) continue;  // complete
        for (std::size_t row = 0; row < rows; row += 4) {
            std::array<const float*, 4> from;
            for (std::size_t i = 0; i < 4; ++i) // no keys are there yet
                from[i] = widened<Arch>(q, offset(std::min(row + i, rows - 1), q_row_stride),
                                        b.k + i * padded, dim);
            causal_columns(from, dim, rule.scale, b.qt + row);
        }
        std::fill_n(b.sum, causal_tile, 0.0F);
        std::fill_n(b.max, causal_tile, -std::numeric_limits<float>::infinity());
        if (stretch.begin == 0) std::fill_n(b.acc, causal_tile * padded, 0.0F);
        for (std::size_t row = 0; stretch.begin > 0 && row < rows; ++row) {
            std::copy_n(left_of(row), dim, b.acc + row * padded);
            b.max[row] = stretch.max[tile + row], b.sum[row] = stretch.sum[tile + row];
        }
        const std::size_t seen_now = std::min(end, stretch.end);
        const auto hidden_from = [&](std::size_t row) { // keys before the first that it sees
            return sees[row] > reach ? sees[row] - reach : 0;
        };
        for (std::size_t block = std::max(hidden_from(0) / causal_tile * causal_tile, stretch.begin);
             block < seen_now; block += causal_tile) {
            const std::size_t n = std::min(causal_tile, seen_now - block);
            for (std::size_t i = 0; i < n; ++i) {
                decode<Arch>(keys.row(block - stretch.begin + i), b.k + i * padded, dim);
                decode<Arch>(values.row(block - stretch.begin + i), b.v + i * padded, dim);
            }
            const bool all_visible = sees.front() >= block + n && hidden_from(causal_tile - 1) <= block;
            for (std::size_t row = 0; !all_visible && row < causal_tile; ++row) {
                b.visible[row] =
                    static_cast<float>(sees[row] > block ? std::min(sees[row] - block, causal_tile) : 0);
                b.hidden[row] = static_cast<float>(std::max(hidden_from(row), block) - block);
            }
            causal_block<Arch>(b, rows, n, padded, all_visible, rule.cap,
                               stretch.log_weight == nullptr ? nullptr
                                                             : stretch.log_weight + block - stretch.begin);
        }
        for (std::size_t row = 0; seen_now < end && row < rows; ++row) { // more stretches are to come
            std::copy_n(b.acc + row * padded, dim, left_of(row));
            stretch.max[tile + row] = b.max[row], stretch.sum[tile + row] = b.sum[row];
        }
        for (std::size_t row = 0; seen_now == end && row < rows; ++row) {
            float* const acc = b.acc + row * padded;
            float share = 1.0F / b.sum[row];
            if (sink_logits != nullptr) {
                const partial seen{b.max + row, b.sum + row, acc, 1, static_cast<std::uint32_t>(dim)};
                add_sink_logits<Arch>(seen, sink_logits + (tile + row) % group);
                share = 1.0F / b.sum[row];
            }
            // Adding zero turns -0 into +0: behind the last visible key, 0 * v may have turned a -0 or not.
            for (std::size_t d = 0; d < dim; ++d) acc[d] = acc[d] * share + 0.0F;
            encode<Arch>(acc, out, offset(row, out_row_stride), dim);
        }
    }
}

#ifdef KVTL_INSTANCE
#define KVTL_CAUSAL(E)                                                                                       \
    KVTL_INSTANCE void attend_causal<default_arch, E>(                                                       \
        const tensor_view&, std::size_t, std::size_t, const logit_rule&, std::size_t, rows_view<E>,          \
        rows_view<E>, std::size_t, const tensor_span&, std::size_t, std::span<float>, std::size_t,           \
        const float*, const causal_stretch&) noexcept;
KVTL_CAUSAL(float)
KVTL_CAUSAL(f16)
KVTL_CAUSAL(bf16)
#undef KVTL_CAUSAL
#endif

}}} // namespace kvtl::v0::simd
