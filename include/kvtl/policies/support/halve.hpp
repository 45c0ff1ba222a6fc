// Divides one cluster in two: 2-means, starting from a cut across the direction of the largest spread.
//
// Shapes: points (n, D) of E; side (n) of 0 and 1.
// Cost:   about fifteen passes over its rows; scratch 8 bytes per point and 16 per dimension.
// Limits: deterministic: equal input gives equal bits on one architecture. Float sums, finite points.
// Source: the principal direction as the first cut of a pair: Boley's PDDP (1998).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/distance.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/moments.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

namespace kvtl { inline namespace v0 {

namespace detail {

/// Some of the rows of a table: those that `index` names, in its order.
template <element E> struct row_set {
    rows_view<E> rows;
    std::span<const std::uint32_t> index; ///< empty: all rows

    [[nodiscard]] std::size_t count() const noexcept { return index.empty() ? rows.count : index.size(); }
    [[nodiscard]] const E* row(std::size_t i) const noexcept {
        return rows.row(index.empty() ? i : index[i]);
    }
};

/// Scratch of one halving of up to n points.
struct halve_memory {
    std::span<float> side_of_cut;    ///< (n) signed distance (not to scale) to the cut: side 1 is positive
    std::span<std::uint32_t> sorted; ///< (n)
    std::span<float> origin;         ///< (D) a point of the cut
    std::span<float> normal;         ///< (D) direction across the cut
    std::span<float> mean[2];        ///< (D) of each side

    static halve_memory take(carver& c, std::size_t n, std::size_t dim) noexcept {
        return {c.take<float>(n),
                c.take<std::uint32_t>(n),
                c.take<float>(dim),
                c.take<float>(dim),
                {c.take<float>(dim), c.take<float>(dim)}};
    }
};

/// (x - origin) . normal, from differences: keys have large means in a few dimensions.
template <class Arch, element E>
[[nodiscard]] float across(const E* x, const float* origin, const float* normal, std::size_t n) noexcept {
    using F = simd::floats<Arch>;
    F sum(0.0F);
    std::size_t i = 0;
    for (; i + simd::floats_per_register<Arch> <= n; i += simd::floats_per_register<Arch>)
        sum = simd::fma<Arch>(simd::load<Arch>(x + i) - simd::load<Arch>(origin + i),
                              simd::load<Arch>(normal + i), sum);
    if (const std::size_t rest = n - i; rest != 0)
        sum = simd::fma<Arch>(simd::load_part<Arch>(x + i, rest) - simd::load_part<Arch>(origin + i, rest),
                              simd::load_part<Arch>(normal + i, rest), sum);
    return simd::reduce_add<Arch>(sum);
}

/// Where the points lie relative to the cut through `origin` across `normal`; returns how many are on side 1.
template <class Arch, element E> std::size_t cut(const row_set<E>& points, const halve_memory& m) noexcept {
    std::size_t ones = 0;
    for (std::size_t i = 0; i < points.count(); ++i) {
        m.side_of_cut[i] = across<Arch>(points.row(i), m.origin.data(), m.normal.data(), points.rows.dim);
        ones += m.side_of_cut[i] > 0 ? 1 : 0;
    }
    return ones;
}

/// Puts the direction of the points' largest spread into m.normal, their mean into m.origin: the direction of
/// the point that is farthest from the mean, sharpened by three steps of power iteration. False when all
/// points are equal.
template <class Arch, element E>
[[nodiscard]] bool principal_direction(const row_set<E>& points, const halve_memory& m) noexcept {
    const std::size_t n = points.count(), dim = points.rows.dim;
    float m2 = 0;
    std::fill(m.origin.begin(), m.origin.end(), 0.0F);
    for (std::size_t i = 0; i < n; ++i)
        simd::absorb<Arch>(points.row(i), dim, static_cast<std::uint32_t>(i), m.origin.data(), m2);
    std::size_t farthest = 0;
    float distance = 0;
    for (std::size_t i = 0; i < n; ++i)
        if (const float d = simd::l2sq<Arch>(m.origin.data(), points.row(i), dim); d > distance) {
            farthest = i;
            distance = d;
        }
    if (!(distance > 0)) return false;
    simd::decode<Arch>(points.row(farthest), m.normal.data(), dim);
    simd::axpy<Arch>(-1.0F, m.origin.data(), m.normal.data(), dim);
    float* next = m.mean[0].data();
    for (int step = 0; step < 3; ++step) { // next = sum of (x - mean) ((x - mean) . normal)
        std::fill_n(next, dim, 0.0F);
        float weights = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const float weight =
                across<Arch>(points.row(i), m.origin.data(), m.normal.data(), dim) / distance;
            simd::axpy<Arch>(weight, points.row(i), next, dim);
            weights += weight;
        }
        simd::axpy<Arch>(-weights, m.origin.data(), next, dim);
        const float norm = std::sqrt(simd::dot<Arch>(next, next, dim));
        if (!(norm > 0)) break; // spread below the resolution of floats: keep the direction there is
        simd::scale<Arch>(std::sqrt(distance) / norm, next, dim);
        std::copy_n(next, dim, m.normal.data());
    }
    return true;
}

/// Divides the points in two; returns the size of side 1, 1 to n - 1. Neither side exceeds max_side (>= n /
/// 2, rounded up) or is smaller than min_side (<= n / 2); where the natural cut breaks that, the points are
/// divided evenly.
template <class Arch, element E>
std::size_t halve_set(const row_set<E>& points, std::size_t min_side, std::size_t max_side,
                      const halve_memory& m, std::uint8_t* side) noexcept {
    const std::size_t n = points.count(), dim = points.rows.dim;
    const auto fits = [&](std::size_t ones) {
        return ones >= std::max<std::size_t>(min_side, 1) && n - ones >= std::max<std::size_t>(min_side, 1) &&
               std::max(ones, n - ones) <= max_side;
    };
    std::fill_n(side, n, std::uint8_t{0});
    std::size_t ones = 0;
    if (principal_direction<Arch>(points, m)) {
        ones = cut<Arch>(points, m);
        for (int round = 0; round < 5 && ones != 0 && ones != n; ++round) {
            // 2-means: cut midway between the means
            bool moved = round == 0;
            std::uint32_t count[2] = {};
            for (std::size_t i = 0; i < n; ++i) {
                const std::uint8_t s = m.side_of_cut[i] > 0 ? 1 : 0;
                moved = moved || s != side[i];
                side[i] = s;
                if (count[s] == 0) std::fill(m.mean[s].begin(), m.mean[s].end(), 0.0F);
                float unused = 0;
                simd::absorb<Arch>(points.row(i), dim, count[s]++, m.mean[s].data(), unused);
            }
            if (!moved) break;
            for (std::size_t d = 0; d < dim; ++d) {
                m.normal[d] = m.mean[1][d] - m.mean[0][d];
                m.origin[d] = 0.5F * (m.mean[1][d] + m.mean[0][d]);
            }
            ones = cut<Arch>(points, m);
        }
    } else {
        std::fill_n(m.side_of_cut.begin(), n, 0.0F);
    }
    if (fits(ones)) {
        for (std::size_t i = 0; i < n; ++i) side[i] = m.side_of_cut[i] > 0 ? 1 : 0;
        return ones;
    }
    const auto order = m.sorted.first(n); // across the cut, equal ones as they come
    std::iota(order.begin(), order.end(), 0U);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>((n + 1) / 2);
    std::nth_element(order.begin(), middle, order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return m.side_of_cut[a] != m.side_of_cut[b] ? m.side_of_cut[a] < m.side_of_cut[b] : a < b;
    });
    std::fill_n(side, n, std::uint8_t{0});
    for (auto i = middle; i != order.end(); ++i) side[*i] = 1;
    return n / 2;
}

} // namespace detail

/// Bytes of scratch that halve needs for n points.
[[nodiscard]] inline std::size_t halve_scratch_bytes(std::size_t n, std::size_t dim) noexcept {
    carver counting;
    static_cast<void>(detail::halve_memory::take(counting, n, dim));
    return counting.used();
}

/// 2-means from a cut across the principal direction; at least two points. Returns how many have side 1;
/// neither side is empty, even if all points are equal, and neither exceeds `max_side` (at least half of the
/// points): where 2-means would, the points are divided evenly. The order of the points matters only among
/// equal ones.
template <class Arch = simd::default_arch, element E>
std::size_t halve(rows_view<E> points, std::size_t max_side, std::span<std::byte> scratch,
                  std::uint8_t* side) noexcept {
    assert(points.count >= 2 && 2 * max_side >= points.count);
    assert(scratch.size() >= halve_scratch_bytes(points.count, points.dim));
    carver carve(scratch);
    const auto memory = detail::halve_memory::take(carve, points.count, points.dim);
    return detail::halve_set<Arch>(detail::row_set<E>{points, {}}, 1, max_side, memory, side);
}

/// The same without a limit on the sides.
template <class Arch = simd::default_arch, element E>
std::size_t halve(rows_view<E> points, std::span<std::byte> scratch, std::uint8_t* side) noexcept {
    return halve<Arch>(points, points.count, scratch, side);
}

#ifdef KVTL_INSTANCE
#define KVTL_HALVE(E)                                                                                        \
    KVTL_INSTANCE std::size_t halve<simd::default_arch, E>(rows_view<E>, std::size_t, std::span<std::byte>,  \
                                                           std::uint8_t*) noexcept;                          \
    KVTL_INSTANCE std::size_t halve<simd::default_arch, E>(rows_view<E>, std::span<std::byte>,               \
                                                           std::uint8_t*) noexcept;
KVTL_HALVE(float)
KVTL_HALVE(f16)
KVTL_HALVE(bf16)
#undef KVTL_HALVE
#endif

}} // namespace kvtl::v0
