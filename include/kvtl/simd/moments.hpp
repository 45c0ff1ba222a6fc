// Running mean and spread of a set of vectors.
//
// What:   Welford's update: the mean, and m2 = the sum of squared distances to the mean. m2 / count is
//         the variance that decides on splitting a cluster.
// Shapes: x (D) of E, mean (D) f32, rows (N,D) of E.
// Cost:   one pass over x and mean per vector; two passes over the rows when computed afresh.
// Source: B. P. Welford, Technometrics 4 (1962).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/distance.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 { namespace simd {

/// The m2 that a set of `count` vectors would have with x added. The set stays as it is.
template <class Arch = default_arch, element E>
[[nodiscard]] inline float tentative_m2(const E* x, std::size_t dims, std::uint32_t count, const float* mean,
                                        float m2) noexcept {
    const auto n = static_cast<float>(count);
    return m2 + n / (n + 1.0F) * l2sq<Arch>(mean, x, dims);
}

/// Adds x to a set of `count_before` vectors: updates `mean` and `m2`.
template <class Arch = default_arch, element E>
inline void absorb(const E* x, std::size_t dims, std::uint32_t count_before, float* mean,
                   float& m2) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const auto n = static_cast<float>(count_before);
    const F share(1.0F / (n + 1.0F));
    F sum(0.0F);
    std::size_t i = 0;
    for (; i + lane_count <= dims; i += lane_count) {
        const F old = load<Arch>(mean + i);
        const F difference = load<Arch>(x + i) - old;
        sum = fma<Arch>(difference, difference, sum);
        store<Arch>(mean + i, fma<Arch>(difference, share, old));
    }
    if (const std::size_t rest = dims - i; rest != 0) {
        const F old = load_part<Arch>(mean + i, rest);
        const F difference = load_part<Arch>(x + i, rest) - old;
        sum = fma<Arch>(difference, difference, sum);
        store_part<Arch>(mean + i, fma<Arch>(difference, share, old), rest);
    }
    // Equal to the sum of (x - old mean)(x - new mean): the second factor is n / (n + 1) of the first.
    m2 += n / (n + 1.0F) * reduce_add<Arch>(sum);
}

/// sums[i] += weight * (x[i] - mean[i])^2: what x adds to the squared distances of a set, by dimension. With n vectors in
/// the set, their mean before x joins them, and a weight of n / (n + 1) the sums add up to m2.
template <class Arch = default_arch, element E>
inline void add_squares(const E* x, std::size_t dims, const float* mean, float weight, float* sums) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const F share(weight);
    std::size_t i = 0;
    for (; i + lane_count <= dims; i += lane_count) {
        const F difference = load<Arch>(x + i) - load<Arch>(mean + i);
        store<Arch>(sums + i, fma<Arch>(difference * share, difference, load<Arch>(sums + i)));
    }
    if (const std::size_t rest = dims - i; rest != 0) {
        const F difference = load_part<Arch>(x + i, rest) - load_part<Arch>(mean + i, rest);
        store_part<Arch>(sums + i, fma<Arch>(difference * share, difference, load_part<Arch>(sums + i, rest)),
                         rest);
    }
}

/// y += rate * (a * x - y): a running mean of the rows a * x.
template <class Arch = default_arch, element E>
inline void move_towards(float a, const float* x, float rate, E* y, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const F by(a * rate), rest(1.0F - rate);
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count)
        store<Arch>(y + i, fma<Arch>(by, load<Arch>(x + i), rest * load<Arch>(y + i)));
    if (i < n)
        store_part<Arch>(
            y + i, fma<Arch>(by, load_part<Arch>(x + i, n - i), rest * load_part<Arch>(y + i, n - i)), n - i);
}

/// Mean and m2 of the rows at the addresses row(0), ..., row(count - 1). No rows: zeros.
template <class Arch, class Row>
[[nodiscard]] inline float mean_and_m2_of(std::size_t count, std::size_t dims, Row row,
                                          float* mean) noexcept {
    std::fill_n(mean, dims, 0.0F);
    if (count == 0) return 0.0F;
    for (std::size_t i = 0; i < count; ++i) add<Arch>(row(i), mean, dims);
    scale<Arch>(1.0F / static_cast<float>(count), mean, dims);
    float m2 = 0.0F;
    for (std::size_t i = 0; i < count; ++i) m2 += l2sq<Arch>(mean, row(i), dims);
    return m2;
}

/// Writes the mean of all rows, returns their m2.
template <class Arch = default_arch, element E>
[[nodiscard]] inline float mean_and_m2(rows_view<E> rows, float* mean) noexcept {
    return mean_and_m2_of<Arch>(
        rows.count, rows.dim, [&](std::size_t i) { return rows.row(i); }, mean);
}

/// The same over the rows that `index` names.
template <class Arch = default_arch, element E>
[[nodiscard]] inline float mean_and_m2(rows_view<E> rows, std::span<const std::uint32_t> index,
                                       float* mean) noexcept {
    return mean_and_m2_of<Arch>(
        index.size(), rows.dim, [&](std::size_t i) { return rows.row(index[i]); }, mean);
}

}}} // namespace kvtl::v0::simd
