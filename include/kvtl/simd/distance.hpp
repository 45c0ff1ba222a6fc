// Squared Euclidean distances from an f32 query to stored rows.
//
// Shapes: q (D), rows (N,D) of E, out (N).
// Cost:   N * D subtractions and multiply-adds.
// Limits: computed from differences, so small distances between large vectors keep their digits.
// SPDX-License-Identifier: MIT
#pragma once

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
inline void l2sq_codes(const float* q, rows_view<std::int8_t> rows, const float* scale, float* out) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, at_once = 4;
    const auto sweep = [&](auto count, std::size_t first) __attribute__((always_inline)) {
        constexpr std::size_t R = decltype(count)::value;
        F sum[R], negative[R];
        unrolled<R>([&](auto r) { sum[r] = F(0.0F), negative[r] = F(-scale[first + r]); });
        const auto add = [&](const F& query, auto load_from, std::size_t d) __attribute__((always_inline)) {
            unrolled<R>([&](auto r) {
                const F difference = fma<Arch>(negative[r], load_from(rows.row(first + r) + d), query);
                sum[r] = fma<Arch>(difference, difference, sum[r]);
            });
        };
        std::size_t d = 0;
        for (; d + lane_count <= rows.dim; d += lane_count)
            add(
                load<Arch>(q + d), [](const std::int8_t* p) { return load<Arch>(p); }, d);
        if (const std::size_t rest = rows.dim - d; rest != 0)
            add(
                load_part<Arch>(q + d, rest),
                [rest](const std::int8_t* p) { return load_part<Arch>(p, rest); }, d);
        unrolled<R>([&](auto r) { out[first + r] = reduce_add<Arch>(sum[r]); });
    };
    std::size_t i = 0;
    for (; i + at_once <= rows.count; i += at_once) sweep(constant<at_once>{}, i);
    for (; i < rows.count; ++i) sweep(constant<1>{}, i);
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

}}} // namespace kvtl::v0::simd
