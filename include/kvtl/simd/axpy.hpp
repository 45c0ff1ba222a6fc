// Sums of vectors.
//
// Shapes: x (n) of E, y (n) f32. Cost: n multiply-adds; one pass over x and y.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>

namespace kvtl { inline namespace v0 { namespace simd {

/// y += a * x
template <class Arch = default_arch, element E>
inline void axpy(float a, const E* x, float* y, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const floats<Arch> factor(a);
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count)
        store<Arch>(y + i, fma<Arch>(factor, load<Arch>(x + i), load<Arch>(y + i)));
    if (i != n)
        store_part<Arch>(
            y + i, fma<Arch>(factor, load_part<Arch>(x + i, n - i), load_part<Arch>(y + i, n - i)), n - i);
}

/// y += x
template <class Arch = default_arch, element E>
inline void add(const E* x, float* y, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(y + i, load<Arch>(x + i) + load<Arch>(y + i));
    if (i != n) store_part<Arch>(y + i, load_part<Arch>(x + i, n - i) + load_part<Arch>(y + i, n - i), n - i);
}

/// y *= a
template <class Arch = default_arch> inline void scale(float a, float* y, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const floats<Arch> factor(a);
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(y + i, factor * load<Arch>(y + i));
    if (i != n) store_part<Arch>(y + i, factor * load_part<Arch>(y + i, n - i), n - i);
}

/// y[i] *= x[i]
template <class Arch = default_arch> inline void multiply(const float* x, float* y, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(y + i, load<Arch>(x + i) * load<Arch>(y + i));
    for (; i < n; ++i) y[i] *= x[i];
}

}}} // namespace kvtl::v0::simd
