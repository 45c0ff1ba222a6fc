// Bulk conversion between f32 and the stored element types.
//
// Shapes: flat runs of n elements, any alignment, in and out apart.
// Cost:   one pass at memory speed with F16C, AVX-512 or NEON.
// Limits: rounds to nearest even; what overflows an f16 (65520 and above) becomes infinity, NaN stays NaN.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

namespace kvtl::inline v0::simd {

/// out[i] = in[i], rounded to E
template <class Arch = default_arch, element E>
inline void encode(const float* in, E* out, std::size_t n) noexcept {
    constexpr std::size_t lane_count = lanes<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(out + i, load<Arch>(in + i));
    if (i != n) store_part<Arch>(out + i, load_part<Arch>(in + i, n - i), n - i);
}

/// out[i] = in[i], exactly
template <class Arch = default_arch, element E>
inline void decode(const E* in, float* out, std::size_t n) noexcept {
    constexpr std::size_t lane_count = lanes<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(out + i, load<Arch>(in + i));
    if (i != n) store_part<Arch>(out + i, load_part<Arch>(in + i, n - i), n - i);
}

/// No NaN and no infinity among the n numbers.
template <class Arch = default_arch>
[[nodiscard]] inline bool all_finite(const float* x, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = lanes<Arch>;
    // 0 * x is 0 for every finite x and NaN for the others, and a sum keeps a NaN: no branch per number.
    const F zero(0.0F);
    F sum[4] = {zero, zero, zero, zero};
    std::size_t i = 0;
    for (; i + 4 * lane_count <= n; i += 4 * lane_count)
        unrolled<4>([&](auto j) { sum[j] = fma<Arch>(load<Arch>(x + i + j * lane_count), zero, sum[j]); });
    for (; i + lane_count <= n; i += lane_count) sum[0] = fma<Arch>(load<Arch>(x + i), zero, sum[0]);
    if (i != n) sum[1] = fma<Arch>(load_part<Arch>(x + i, n - i), zero, sum[1]);
    return reduce_add<Arch>((sum[0] + sum[1]) + (sum[2] + sum[3])) == 0.0F;
}

} // namespace kvtl::inline v0::simd
