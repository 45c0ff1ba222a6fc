// Decode attention: one query group over rows of keys and values, continuing a softmax state.
//
// What:   per block of rows: logits of all queries (dot.hpp), weights exp(logit - max) with the running
//         maximum adjusted first, then the weighted sum of the values in registers. A row comes from memory
//         once for the whole group, and the block stays in the L1 cache between its two uses.
// Shapes: q (G,D) f32; keys, values (N,D) of E; log_weight (N) or null; state: partial of (G,D).
// Cost:   4 G D flops per row; for small G the bandwidth of the rows is the limit. Nothing allocates.
// Limits: rule.scale > 0; keys and values finite, those of absent rows (log_weight = -inf) too. Any N and D,
//         G <= 64.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/attention.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/relaxed.hpp>

#include <algorithm>
#include <bit>
#include <cassert>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

namespace kvtl { inline namespace v0 { namespace simd {

/// Rows that are read side by side. Taller blocks lose half of the DRAM bandwidth: a processor's prefetcher
/// follows a few streams, not sixteen.
inline constexpr std::size_t row_streams = 4;

/// Floats of scratch that attend_rows needs.
[[nodiscard]] constexpr std::size_t attend_scratch_floats(std::size_t group) noexcept {
    return group * attend_block;
}

/// Every query of a group.
inline constexpr std::uint64_t all_queries = ~std::uint64_t{0};

/// Registers that a weighted sum keeps its results in; the others hold a row and the weights. AVX-512 and
/// NEON have 32, SSE and AVX 16.
template <class Arch>
inline constexpr std::size_t sum_registers =
    floats_per_register<Arch> == 16 || std::derived_from<Arch, xsimd::neon> ? 16 : 8;

/// Turns a block's inner products into weights, in place, and brings max, sum and acc of Q queries up to date with them:
/// query g at s + g * attend_block, max[g], sum[g], acc + g * dim. Several queries are taken together because each waits
/// for its maximum, its exponentials and its sum in turn. `s` has room for attend_block floats a query.
template <class Arch, std::size_t Q>
void weigh(float* s, std::size_t n, const logit_rule& rule, const float* log_weight, float* max, float* sum,
           float* acc, std::size_t dim) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const F scale(rule.cap > 0 ? 1.0F : rule.scale);
    if (rule.cap > 0)
        for (std::size_t g = 0; g < Q; ++g) to_logits<Arch>(rule, s + g * attend_block, n);

    F largest[Q];
    unrolled<Q>([&](auto g) { largest[g] = F(-infinity); });
    const auto logits = [&](std::size_t i, F bias, auto get) __attribute__((always_inline)) {
        unrolled<Q>([&](auto g) {
            const F logit = fma<Arch>(get(s + g * attend_block + i), scale, bias);
            largest[g] = xsimd::max(largest[g], logit);
            store<Arch>(s + g * attend_block + i, logit);
        });
    };
    std::size_t whole = 0; // of registers; what is behind the block becomes -inf
    for (; whole + lane_count <= n; whole += lane_count)
        logits(
            whole, log_weight != nullptr ? load<Arch>(log_weight + whole) : F(0.0F),
            [](const float* p) __attribute__((always_inline)) { return load<Arch>(p); });
    if (const std::size_t rest = n - whole; rest != 0) {
        logits(
            whole, log_weight != nullptr ? load_part<Arch>(log_weight + whole, rest) : F(0.0F),
            [rest](const float* p)
                __attribute__((always_inline)) { return load_part<Arch>(p, rest, -infinity); });
        whole += lane_count;
    }

    float now[Q];
    bool grows = false;
    unrolled<Q>([&](auto g) {
        now[g] = reduce_max<Arch>(largest[g]);
        grows |= now[g] > max[g];
    });
    if (grows)
        for (std::size_t g = 0; g < Q; ++g) {
            if (!(now[g] > max[g])) continue;
            if (max[g] > -infinity) { // otherwise all is zero
                const float shrink = kvtl::detail::exp_shifted<Arch>(max[g], now[g]);
                simd::scale<Arch>(shrink, acc + g * dim, dim);
                sum[g] *= shrink;
            }
            max[g] = now[g];
        }
    F shift[Q], total[Q];
    unrolled<Q>([&](auto g) { // nothing seen yet, and nothing here: -inf - -inf would be no number
        shift[g] = F(max[g] > -infinity ? max[g] : 0.0F);
        total[g] = F(0.0F);
    });
    for (std::size_t i = 0; i < whole; i += lane_count)
        unrolled<Q>([&](auto g) {
            const F weight = exp<Arch>(load<Arch>(s + g * attend_block + i) - shift[g]);
            total[g] = total[g] + weight;
            store<Arch>(s + g * attend_block + i, weight);
        });
    unrolled<Q>([&](auto g) { sum[g] += reduce_add<Arch>(total[g]); });
}

/// weigh for any number of queries.
template <class Arch>
inline void weigh_group(std::size_t group, float* s, std::size_t n, const logit_rule& rule,
                        const float* log_weight, float* max, float* sum, float* acc,
                        std::size_t dim) noexcept {
    std::size_t g = 0;
    const auto together = [&](auto queries) {
        constexpr std::size_t Q = decltype(queries)::value;
        for (; g + Q <= group; g += Q)
            weigh<Arch, Q>(s + g * attend_block, n, rule, log_weight, max + g, sum + g, acc + g * dim, dim);
    };
    together(constant<4>{});
    together(constant<2>{});
    together(constant<1>{});
}

/// acc[g][j] += sum over the rows of weight[g][row] * row[j], for Q queries and the `width` numbers j from
/// `first` on. N registers hold them; the last register is partly used where width is no multiple of lanes.
template <class Arch, std::size_t Q, std::size_t N, number E, class Width>
void weighted_sum(const float* weight, rows_view<E> rows, std::size_t first, Width width, float* acc,
                  std::size_t acc_stride) noexcept {
    using F = floats<Arch>;
    const auto get = [&](const auto* p, std::size_t at) __attribute__((always_inline)) {
        if constexpr (std::is_same_v<Width, constant<N * floats_per_register<Arch>>>)
            return load<Arch>(p + at);
        else
            return load_part<Arch>(p + at, width);
    };
    F sum[Q * N];
    unrolled<Q>([&](auto g) { // a pointer per query, not one per register: those would not all have room
        const float* from = acc + g * acc_stride + first;
        unrolled<N>([&](auto j) { sum[g * N + j] = get(from, j * floats_per_register<Arch>); });
    });
    const auto sum_rows = [&](auto asks) __attribute__((always_inline)) {
        for (std::size_t r = 0; r < rows.count; ++r) {
            if constexpr (asks != 0)
                if (first == 0) ask_ahead<Arch>(rows, r, 1); // the first pass asks for all
            F x[N];
            unrolled<N>(
                [&](auto j) { x[j] = keep<Arch>(get(rows.row(r) + first, j * floats_per_register<Arch>)); });
            unrolled<Q>([&](auto g) {
                const F w =
                    keep<Arch>(F(weight[g * attend_block + r])); // once, not once per register of the row
                unrolled<N>([&](auto j) { sum[g * N + j] = fma<Arch>(w, x[j], sum[g * N + j]); });
            });
        }
    };
    if (asks_ahead(rows))
        sum_rows(constant<1>{});
    else
        sum_rows(constant<0>{});
    unrolled<Q>([&](auto g) {
        float* to = acc + g * acc_stride + first;
        unrolled<N>([&](auto j) {
            if constexpr (std::is_same_v<Width, constant<N * floats_per_register<Arch>>>)
                store<Arch>(to + j * floats_per_register<Arch>, sum[g * N + j]);
            else
                store_part<Arch>(to + j * floats_per_register<Arch>, sum[g * N + j], width);
        });
    });
}

/// The weighted sum for Q queries over all dimensions, in as few passes over the block as the registers
/// allow.
template <class Arch, std::size_t Q, number E>
void weighted_sums(const float* weight, rows_view<E> rows, float* acc, std::size_t acc_stride) noexcept {
    constexpr std::size_t widest = std::bit_floor(std::min<std::size_t>(8, sum_registers<Arch> / Q));
    std::size_t first = 0;
    const auto passes = [&](auto n) {
        constexpr std::size_t width = n * floats_per_register<Arch>;
        for (; first + width <= rows.dim; first += width)
            weighted_sum<Arch, Q, n>(weight, rows, first, constant<width>{}, acc, acc_stride);
    };
    passes(constant<widest>{});
    if constexpr (widest > 4) passes(constant<4>{});
    if constexpr (widest > 2) passes(constant<2>{});
    if constexpr (widest > 1) passes(constant<1>{});
    if (first < rows.dim) weighted_sum<Arch, Q, 1>(weight, rows, first, rows.dim - first, acc, acc_stride);
}

/// out[g * out_stride + i] = q_g . rows[i] for the queries q_g = q + g * q_stride of a group.
template <class Arch, number E>
[[gnu::always_inline]] inline void score_rows(const float* q, std::size_t group, std::size_t q_stride,
                                              rows_view<E> rows, float* out,
                                              std::size_t out_stride) noexcept {
    static_assert(tile_pairs<Arch> / 4 <= row_streams); // a group's blocks are low enough already
    constexpr bool may_cut = has_bf16_products<Arch> && std::is_same_v<E, bf16>;
    const bool cut = may_cut && bf16_products_of(rows.dim); // a query is cut in two once per call
    if (cut || group > 1) return dot_group<Arch>(q, group, q_stride, rows, out, out_stride);
    for (std::size_t i = 0; i < rows.count; i += row_streams)
        dot_rows<Arch>(q, rows.slice(i, std::min(row_streams, rows.count - i)), out + i);
}

/// acc_g += sum over at most attend_block rows of weight[g * attend_block + row] * rows[row], where acc_g =
/// acc + g * acc_stride.
template <class Arch, number E>
inline void accumulate_rows(const float* weight, std::size_t group, rows_view<E> rows, float* acc,
                            std::size_t acc_stride) noexcept {
    std::size_t g = 0;
    for (; g + 4 <= group; g += 4)
        weighted_sums<Arch, 4>(weight + g * attend_block, rows, acc + g * acc_stride, acc_stride);
    weight += g * attend_block;
    acc += g * acc_stride;
    if (group - g == 3) weighted_sums<Arch, 3>(weight, rows, acc, acc_stride);
    if (group - g == 2) weighted_sums<Arch, 2>(weight, rows, acc, acc_stride);
    if (group - g == 1) weighted_sums<Arch, 1>(weight, rows, acc, acc_stride);
}

/// The softmax over rows in whatever form they are: lets the queries of `queries` (bit g stands for query g)
/// attend `rows` rows and adds the result to `p`. Any order and cutting of the rows is fine. log_weight, null
/// or one number per row, is added to the logit: ln n for a row that stands for n equal ones, -inf for a row
/// that is absent. The rows are reached through two functions, for at most attend_block rows from `first` on
/// and `count` queries from `begin` on:
///   score(first, n, begin, count, s)            s[g * attend_block + i] = inner products
///   accumulate(first, n, count, s, acc)  acc (count, D) += weighted values
/// Always inlined, as what leads to a block is: rows in memory come 16 at a time, and a call costs as much as a row.
template <class Arch = default_arch, class Score, class Accumulate>
[[gnu::always_inline]] inline void attend_blocks(std::size_t rows, const logit_rule& rule,
                                                 const float* log_weight, const partial& p,
                                                 std::span<float> scratch, std::uint64_t queries,
                                                 Score&& score, Accumulate&& accumulate) noexcept {
    assert(scratch.size() >= attend_scratch_floats(p.group));
    if (p.group < 64) queries &= (std::uint64_t{1} << p.group) - 1;

    for (std::size_t first = 0; first < rows; first += attend_block) {
        const std::size_t n = std::min(attend_block, rows - first);
        for (std::uint64_t left = queries;
             left != 0;) { // run by run of neighbouring queries, mostly just one
            const auto begin = static_cast<std::size_t>(std::countr_zero(left));
            const auto count = static_cast<std::size_t>(std::countr_one(left >> begin));
            left &= begin + count < 64 ? all_queries << (begin + count) : 0;

            float* s = scratch.data();
            float* acc = p.acc + begin * p.dim;
            score(first, n, begin, count, s);
            weigh_group<Arch>(count, s, n, rule, log_weight != nullptr ? log_weight + first : nullptr,
                              p.max + begin, p.sum + begin, acc, p.dim);
            accumulate(first, n, count, s, acc);
        }
    }
}

/// attend_blocks with queries that are rounded for rows of E, eight at a time: score(rounded, first, n, begin, count, s). Only
/// where has_relaxed_products and relaxed_products_of(p.dim). Query g is at q + g * q_stride.
template <class Arch, number E, class Score, class Accumulate>
[[gnu::always_inline]] inline void
attend_rounded(const float* q, std::size_t q_stride, std::size_t rows, const logit_rule& rule,
               const float* log_weight, const partial& p, std::span<float> scratch, std::uint64_t queries,
               Score&& score, Accumulate&& accumulate) noexcept {
    rounded_queries<Arch, E> rounded;
    constexpr std::uint32_t most = rounded_queries<Arch, E>::most;
    for (std::uint32_t g = 0; g < p.group; g += most, queries >>= most) {
        const std::uint32_t count = std::min(most, p.group - g);
        const partial some{p.max + g, p.sum + g, p.acc + std::size_t{g} * p.dim, count, p.dim};
        round_queries<Arch, E>(q + g * q_stride, count, q_stride, p.dim, rounded);
        attend_blocks<Arch>(
            rows, rule, log_weight, some, scratch, queries,
            [&](std::size_t first, std::size_t n, std::size_t begin, std::size_t of, float* s)
                __attribute__((always_inline)) { score(rounded, first, n, begin, of, s); },
            accumulate);
    }
}

/// attend_blocks for plain rows; query g is at q + g * q_stride.
template <class Arch = default_arch, element E>
void attend_rows(const float* q, std::size_t q_stride, const logit_rule& rule, rows_view<E> keys,
                 rows_view<E> values, const float* log_weight, const partial& p, std::span<float> scratch,
                 std::uint64_t queries = all_queries) noexcept {
    assert(keys.count == values.count && keys.dim == p.dim && values.dim == p.dim);
    if constexpr (has_relaxed_products<Arch, E>)
        if (rule.relaxed && relaxed_products_of(p.dim))
            return attend_rounded<Arch, E>(
                q, q_stride, keys.count, rule, log_weight, p, scratch, queries,
                [&](const auto& rounded, std::size_t first, std::size_t n, std::size_t begin,
                    std::size_t count, float* s) {
                    score_rounded<Arch, E>(rounded, begin, count, keys.slice(first, n), s, attend_block);
                },
                [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
                    accumulate_relaxed<Arch, E>(s, count, values.slice(first, n), acc, p.dim);
                });
    attend_blocks<Arch>(
        keys.count, rule, log_weight, p, scratch, queries,
        [&](std::size_t first, std::size_t n, std::size_t begin, std::size_t count, float* s) {
            score_rows<Arch>(q + begin * q_stride, count, q_stride, keys.slice(first, n), s, attend_block);
        },
        [&](std::size_t first, std::size_t n, std::size_t count, const float* s, float* acc) {
            accumulate_rows<Arch>(s, count, values.slice(first, n), acc, p.dim);
        });
}

#ifdef KVTL_INSTANCE
#define KVTL_WEIGH(Q)                                                                                        \
    KVTL_INSTANCE void weigh<default_arch, Q>(float*, std::size_t, const logit_rule&, const float*, float*,  \
                                              float*, float*, std::size_t) noexcept;
KVTL_WEIGH(1)
KVTL_WEIGH(2)
KVTL_WEIGH(4)
#undef KVTL_WEIGH
#define KVTL_SUMS(Q, E)                                                                                      \
    KVTL_INSTANCE void weighted_sums<default_arch, Q, E>(const float*, rows_view<E>, float*,                 \
                                                         std::size_t) noexcept;
#define KVTL_SUMS_OF(E) KVTL_SUMS(1, E) KVTL_SUMS(2, E) KVTL_SUMS(3, E) KVTL_SUMS(4, E)
KVTL_SUMS_OF(float)
KVTL_SUMS_OF(f16)
KVTL_SUMS_OF(bf16)
KVTL_SUMS_OF(std::int8_t)
KVTL_SUMS_OF(e4m3)
#undef KVTL_SUMS_OF
#undef KVTL_SUMS
#define KVTL_ATTEND(E)                                                                                       \
    KVTL_INSTANCE void attend_rows<default_arch, E>(                                                         \
        const float*, std::size_t, const logit_rule&, rows_view<E>, rows_view<E>, const float*,              \
        const partial&, std::span<float>, std::uint64_t) noexcept;
KVTL_ATTEND(float)
KVTL_ATTEND(f16)
KVTL_ATTEND(bf16)
#undef KVTL_ATTEND
#endif

}}} // namespace kvtl::v0::simd
