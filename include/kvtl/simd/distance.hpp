// Squared Euclidean distances from an f32 query to stored rows.
//
// Shapes: q (D), rows (N,D) of E, out (N).
// Cost:   N * D subtractions and multiply-adds.
// Limits: computed from differences, so small distances between large vectors keep their digits.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/tile.hpp>

#include <algorithm>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// sum of (a[i] - b[i])^2
template <class Arch = default_arch, element E>
[[nodiscard]] inline float l2sq(const float* a, const E* b, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[4] = {F(0.0F), F(0.0F), F(0.0F), F(0.0F)};
    const auto add = [&](const F& x, const F& y, F& to) { to = squared_difference::step<Arch>(x, y, to); };
    std::size_t i = 0;
    for (; i + 4 * lane_count <= n; i += 4 * lane_count)
        unrolled<4>([&](auto j) {
            const std::size_t at = i + j * lane_count;
            add(load<Arch>(a + at), load<Arch>(b + at), sum[j]);
        });
    for (; i + lane_count <= n; i += lane_count) add(load<Arch>(a + i), load<Arch>(b + i), sum[0]);
    if (i != n) add(load_part<Arch>(a + i, n - i), load_part<Arch>(b + i, n - i), sum[1]);
    return reduce_add<Arch>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/// out[i] = ||q - rows[i]||^2
template <class Arch = default_arch, element E>
inline void l2sq_rows(const float* q, rows_view<E> rows, float* out) noexcept {
    tile_rows<Arch, squared_difference>(q, rows, out);
}

/// out[i] = ||q - scale[i] rows[i]||^2: rows of codes, each with a scale of its own.
template <class Arch = default_arch>
KVTL_INLINE_KERNEL void l2sq_codes(const float* q, rows_view<std::int8_t> rows, const float* scale,
                                   float* out) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, pairs = tile_pairs<Arch>;
    constexpr std::size_t registers = pairs / lane_count; // of finished sums
    const auto block = [&](auto together, std::size_t first) __attribute__((always_inline)) {
        constexpr std::size_t R = decltype(together)::value;
        constexpr std::size_t S = R < 4 ? R : 4; // rows side by side, as tile() does it
        F sum[pairs];
        unrolled<pairs>([&](auto r) { sum[r] = F(0.0F); });
        unrolled<R / S>([&](auto b) __attribute__((always_inline)) {
            F negative[S];
            unrolled<S>([&](auto s) { negative[s] = keep<Arch>(F(-scale[first + b * S + s])); });
            const auto step = [&](auto load_from, std::size_t d) __attribute__((always_inline)) {
                const F query = keep<Arch>(load_from(q + d));
                unrolled<S>([&](auto s) {
                    constexpr std::size_t r = b * S + s;
                    const F difference = fma<Arch>(negative[s], load_from(rows.row(first + r) + d), query);
                    sum[r] = fma<Arch>(difference, difference, sum[r]);
                });
            };
            std::size_t d = 0;
            for (; d + lane_count <= rows.dim; d += lane_count)
                step(
                    [](const auto* p) __attribute__((always_inline)) { return load<Arch>(p); }, d);
            if (const std::size_t rest = rows.dim - d; rest != 0)
                step(
                    [rest](const auto* p) __attribute__((always_inline)) { return load_part<Arch>(p, rest); },
                    d);
        });
        float finished[registers * lane_count];
        unrolled<registers>([&](auto i) __attribute__((always_inline)) {
            store<Arch>(finished + i * lane_count, reduce_add_each<Arch>(sum + i * lane_count));
        });
        unrolled<R>([&](auto r) { out[first + r] = finished[r]; });
    };
    const auto sweep = [&](auto together) {
        for_row_blocks<decltype(together)::value>(rows.count, [&](std::size_t i) { block(together, i); });
    };
    if (rows.count >= pairs)
        sweep(constant<pairs>{});
    else if (rows.count >= 4)
        sweep(constant<4>{});
    else
        sweep(constant<1>{});
}

/// A row and its squared distance.
struct neighbour {
    std::size_t index = 0;
    float distance = std::numeric_limits<float>::infinity();
};

/// The row nearest to q; ties go to the lower index. No row (or only NaN) gives {0, inf}.
template <class Arch = default_arch, element E>
[[nodiscard]] inline neighbour nearest_row(const float* q, rows_view<E> rows) noexcept {
    constexpr std::size_t block = 64;
    float distance[block];
    neighbour best;
    for (std::size_t first = 0; first < rows.count; first += block) {
        const std::size_t n = std::min(block, rows.count - first);
        l2sq_rows<Arch>(q, rows.slice(first, n), distance);
        for (std::size_t i = 0; i < n; ++i)
            if (distance[i] < best.distance) best = {first + i, distance[i]};
    }
    return best;
}

#ifdef KVTL_INSTANCE
KVTL_INSTANCE void l2sq_codes<default_arch>(const float*, rows_view<std::int8_t>, const float*,
                                            float*) noexcept;
#endif

}}} // namespace kvtl::v0::simd
