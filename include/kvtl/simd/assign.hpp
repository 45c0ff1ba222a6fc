// The inner loop of k-means: which centroid is nearest to each point.
//
// What:   ||p - c||^2 = ||p||^2 - 2 (p.c - ||c||^2 / 2), so the nearest centroid has the greatest
//         p.c - ||c||^2 / 2. A block of centroids is transposed once, so that a register holds one
//         dimension of many centroids and no sum over lanes is ever taken; then a few points at a time
//         run against it. No distance matrix exists.
// Shapes: points (N,D) of E, centroids (C,D) f32 contiguous, half_sq_norms (C) = ||c||^2 / 2,
//         label (N), distance (N).
// Cost:   N * C * D multiply-adds, N * C / 8 further instructions, and C * D stores per call for the
//         transposition.
// Limits: ties go to the lower index. Centroids whose distances differ by less than the rounding errors
//         of p.c may be taken for each other. Scratch is on the stack: 24 KiB.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// How the work is cut: two registers of centroids against as many points as leave all sums in registers (at
/// most 32 there are with AVX-512 and NEON, 16 with SSE and AVX).
template <class Arch> struct assign_block {
    static constexpr bool many_registers =
        floats_per_register<Arch> == 16 || std::derived_from<Arch, xsimd::neon>;
    static constexpr std::size_t points = many_registers ? 8 : 6;
    static constexpr std::size_t centroids = 2 * floats_per_register<Arch>;
    static constexpr std::size_t max_dim = 128; ///< longer rows take the way without transposition
};

/// One block of centroids against all points; improves `label` and `score`, the greatest p.c - ||c||^2 / 2.
template <class Arch, element E, class Dim>
inline void assign_to_block(rows_view<E> points, Dim dim, const float* centroids, std::size_t first,
                            std::size_t count, const float* half_sq_norms, std::uint32_t* label,
                            float* score) noexcept {
    using F = floats<Arch>;
    using block = assign_block<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, P = block::points, C = block::centroids;

    // (D,C): missing centroids are zeros that an infinite norm keeps from winning.
    alignas(64) float transposed[block::max_dim * C];
    alignas(64) float norm[C];
    for (std::size_t c = 0; c < C; ++c)
        norm[c] = c < count ? half_sq_norms[first + c] : std::numeric_limits<float>::infinity();
    for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t c = 0; c < C; ++c)
            transposed[d * C + c] = c < count ? centroids[(first + c) * dim + d] : 0.0F;

    float point[P][block::max_dim + 2 * lane_count]; // (P,D) as f32
    for (std::size_t i = 0; i < points.count; i += P) {
        const std::size_t present = std::min(P, points.count - i);
        for (std::size_t p = 0; p < P; ++p) { // a missing point repeats the last one; its result is not used
            const E* row = points.row(i + std::min(p, present - 1));
            std::size_t d = 0;
            for (; d + lane_count <= dim; d += lane_count) store<Arch>(point[p] + d, load<Arch>(row + d));
            if (d != dim) store<Arch>(point[p] + d, load_part<Arch>(row + d, dim - d));
        }
        F low[P], high[P];
        const F low_norm = load<Arch>(norm), high_norm = load<Arch>(norm + lane_count);
        unrolled<P>([&](auto p) {
            low[p] = F(0.0F);
            high[p] = F(0.0F);
        });
        for (std::size_t d = 0; d < dim; ++d) {
            const F low_c = keep<Arch>(load<Arch>(transposed + d * C));
            const F high_c = keep<Arch>(load<Arch>(transposed + d * C + lane_count));
            unrolled<P>([&](auto p) {
                const F x = keep<Arch>(F(point[p][d]));
                low[p] = fma<Arch>(x, low_c, low[p]);
                high[p] = fma<Arch>(x, high_c, high[p]);
            });
        }
        unrolled<P>([&](auto p) __attribute__((always_inline)) {
            const F low_score = low[p] - low_norm, high_score = high[p] - high_norm;
            const F best = xsimd::max(low_score, high_score);
            if (p >= present || !xsimd::any(best > F(score[i + p]))) return; // later blocks lose ties
            const float greatest = reduce_max<Arch>(best);
            float all[C];
            store<Arch>(all, low_score);
            store<Arch>(all + lane_count, high_score);
            std::size_t winner = 0;
            while (all[winner] != greatest) ++winner;
            score[i + p] = greatest;
            label[i + p] = static_cast<std::uint32_t>(first + winner);
        });
    }
}

/// label[i] = index of the centroid nearest to point i, distance[i] = their squared distance, computed from
/// the differences (so never below 0). `centroid_count` is at least 1. Centroids are finite; a point with NaN
/// gets label 0.
template <class Arch = default_arch, element E>
KVTL_INLINE_KERNEL void kmeans_assign(rows_view<E> points, const float* centroids, std::size_t centroid_count,
                                      const float* half_sq_norms, std::uint32_t* label,
                                      float* distance) noexcept {
    using block = assign_block<Arch>;
    const std::size_t dim = points.dim;
    std::fill_n(label, points.count, 0U);
    std::fill_n(distance, points.count,
                -std::numeric_limits<float>::infinity()); // holds scores until the end
    if (points.count >= block::points && centroid_count > floats_per_register<Arch> &&
        dim <= block::max_dim) {
        with_dim(dim, [&](auto d) {
            for (std::size_t c = 0; c < centroid_count; c += block::centroids)
                assign_to_block<Arch>(points, d, centroids, c, std::min(block::centroids, centroid_count - c),
                                      half_sq_norms, label, distance);
        });
    } else { // too few points or centroids to pay for a transposition
        constexpr std::size_t chunk = 16;
        float products[chunk][chunk]; // (centroid, point)
        for (std::size_t i = 0; i < points.count; i += chunk) {
            const rows_view<E> some = points.slice(i, std::min(chunk, points.count - i));
            for (std::size_t first = 0; first < centroid_count; first += chunk) {
                const std::size_t n = std::min(chunk, centroid_count - first);
                dot_group<Arch>(centroids + first * dim, n, dim, some, products[0], chunk);
                for (std::size_t c = 0; c < n; ++c)
                    for (std::size_t p = 0; p < some.count; ++p)
                        if (const float s = products[c][p] - half_sq_norms[first + c]; s > distance[i + p]) {
                            distance[i + p] = s;
                            label[i + p] = static_cast<std::uint32_t>(first + c);
                        }
            }
        }
    }
    for (std::size_t i = 0; i < points.count; ++i)
        distance[i] = l2sq<Arch>(centroids + label[i] * dim, points.row(i), dim);
}

#ifdef KVTL_INSTANCE
#define KVTL_ASSIGN(E)                                                                                       \
    KVTL_INSTANCE void kmeans_assign<default_arch, E>(rows_view<E>, const float*, std::size_t, const float*, \
                                                      std::uint32_t*, float*) noexcept;
KVTL_ASSIGN(float)
KVTL_ASSIGN(f16)
KVTL_ASSIGN(bf16)
#undef KVTL_ASSIGN
#endif

}}} // namespace kvtl::v0::simd
