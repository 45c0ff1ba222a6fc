// Inner products of f32 queries with stored rows.
//
// Shapes: q (D) or (G,D), rows (N,D) of E, out (N) or (G,N).
// Cost:   N * G * D multiply-adds; a row comes from memory once for the whole group.
// Limits: f32 sums; any D. A row's sum has the same bits wherever the row stands and whatever the group. dot_rows and
//         dot_group multiply bf16 rows by the processor's instruction where it has one, which costs a few bits of q
//         (bf16_products.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/bf16_products.hpp>
#include <kvtl/simd/tile.hpp>

#include <type_traits>

namespace kvtl { inline namespace v0 { namespace simd {

/// sum of a[i] * b[i]
template <class Arch = default_arch, number E>
[[nodiscard]] inline float dot(const float* a, const E* b, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[4] = {F(0.0F), F(0.0F), F(0.0F), F(0.0F)}; // four chains hide the latency of one
    std::size_t i = 0;
    for (; i + 4 * lane_count <= n; i += 4 * lane_count)
        unrolled<4>([&](auto j) {
            const std::size_t at = i + j * lane_count;
            sum[j] = fma<Arch>(load<Arch>(a + at), load<Arch>(b + at), sum[j]);
        });
    for (; i + lane_count <= n; i += lane_count)
        sum[0] = fma<Arch>(load<Arch>(a + i), load<Arch>(b + i), sum[0]);
    if (i != n) sum[1] = fma<Arch>(load_part<Arch>(a + i, n - i), load_part<Arch>(b + i, n - i), sum[1]);
    return reduce_add<Arch>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// sum of weight[i] * a[i]^2
template <class Arch = default_arch>
[[nodiscard]] inline float weighted_square(const float* a, const float* weight, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[2] = {F(0.0F), F(0.0F)};
    std::size_t i = 0;
    for (; i + 2 * lane_count <= n; i += 2 * lane_count)
        unrolled<2>([&](auto j) {
            const F x = load<Arch>(a + i + j * lane_count);
            sum[j] = fma<Arch>(x * x, load<Arch>(weight + i + j * lane_count), sum[j]);
        });
    for (; i + lane_count <= n; i += lane_count) {
        const F x = load<Arch>(a + i);
        sum[0] = fma<Arch>(x * x, load<Arch>(weight + i), sum[0]);
    }
    if (i != n) {
        const F x = load_part<Arch>(a + i, n - i);
        sum[1] = fma<Arch>(x * x, load_part<Arch>(weight + i, n - i), sum[1]);
    }
    return reduce_add<Arch>(sum[0] + sum[1]);
}

/// sum of a[i]
template <class Arch = default_arch> [[nodiscard]] inline float sum(const float* a, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F total[2] = {F(0.0F), F(0.0F)};
    std::size_t i = 0;
    for (; i + 2 * lane_count <= n; i += 2 * lane_count)
        unrolled<2>([&](auto j) { total[j] = total[j] + load<Arch>(a + i + j * lane_count); });
    for (; i + lane_count <= n; i += lane_count) total[0] = total[0] + load<Arch>(a + i);
    if (i != n) total[1] = total[1] + load_part<Arch>(a + i, n - i);
    return reduce_add<Arch>(total[0] + total[1]);
}

/// out[i] = q . rows[i]
template <class Arch = default_arch, number E>
inline void dot_rows(const float* q, rows_view<E> rows, float* out) noexcept {
    if constexpr (has_bf16_products<Arch> && std::is_same_v<E, bf16>)
        if (bf16_products_of(rows.dim)) return bf16_dot_group<Arch>(q, 1, 0, rows, out, 0);
    tile_rows<Arch, product>(q, rows, out);
}

/// out[g * out_stride + i] = q_g . rows[i], where q_g = q + g * q_stride and g < group
template <class Arch = default_arch, number E>
[[gnu::always_inline]] inline void dot_group(const float* q, std::size_t group, std::size_t q_stride,
                                             rows_view<E> rows, float* out, std::size_t out_stride) noexcept {
    if constexpr (has_bf16_products<Arch> && std::is_same_v<E, bf16>)
        if (bf16_products_of(rows.dim))
            return bf16_dot_group<Arch>(q, group, q_stride, rows, out, out_stride);
    tile_group<Arch, product>(q, group, q_stride, rows, out, out_stride);
}

}}} // namespace kvtl::v0::simd
