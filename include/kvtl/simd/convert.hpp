// Bulk conversion between f32, f16 and bf16.
//
// Shapes: flat runs of n elements, any alignment, in and out apart.
// Cost:   one pass at memory speed with F16C, AVX-512 or NEON.
// Limits: rounds to nearest even; what overflows an f16 (65520 and above) becomes infinity, NaN stays NaN.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cassert>
#include <concepts>

namespace kvtl { inline namespace v0 { namespace simd {

/// out[i] = in[i], rounded to E
template <class Arch = default_arch, element From, element E>
inline void encode(const From* in, E* out, std::size_t n) noexcept {
    if constexpr (std::same_as<From, E>) {
        std::copy_n(in, n, out);
        return;
    }
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(out + i, load<Arch>(in + i));
    if (i != n) store_part<Arch>(out + i, load_part<Arch>(in + i, n - i), n - i);
}

/// out[i] = in[first + i], rounded to E, of numbers that follow one another.
template <class Arch = default_arch, element E>
inline void encode(const tensor_view& in, std::size_t first, E* out, std::size_t n) noexcept {
    assert(n <= in.run(first));
    in.visit([&](const auto* p) { encode<Arch>(p + in.place(first), out, n); });
}

/// out[i] = in[i], exactly
template <class Arch = default_arch, element E>
inline void decode(const E* in, float* out, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) store<Arch>(out + i, load<Arch>(in + i));
    if (i != n) store_part<Arch>(out + i, load_part<Arch>(in + i, n - i), n - i);
}

/// out[at + i] = in[i], rounded to what they are
template <class Arch = default_arch>
inline void encode(const float* in, const tensor_span& out, std::size_t at, std::size_t n) noexcept {
    out.visit([&](auto* p) { encode<Arch>(in, p + at, n); });
}

/// in[first + i], i < n, as floats: where they lie when they are floats, else in `room`, (n). They follow one another.
template <class Arch = default_arch>
[[nodiscard]] inline const float* widened(const tensor_view& in, std::size_t first, float* room,
                                          std::size_t n) noexcept {
    assert(n <= in.run(first));
    if (const float* all = in.as<float>()) return all + in.place(first);
    encode<Arch>(in, first, room, n);
    return room;
}

/// No NaN, no infinity and nothing that rounds to one when it is stored as E among the n numbers.
template <class E = float, class Arch = default_arch, element From = float>
[[nodiscard]] KVTL_INLINE_KERNEL bool all_finite(const From* x, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    // A number beyond E's range overflows when scaled; 0 * y is 0 for every finite y and NaN for the others,
    // and a sum keeps a NaN: no branch per number. 65504 and 3.3895e38 are the largest numbers of f16 and
    // bf16.
    constexpr float scaled = std::same_as<E, f16>    ? 3.4028234e38F / 65519.0F
                             : std::same_as<E, bf16> ? 1.0033F
                                                     : 1.0F;
    const F zero(0.0F), scale(scaled);
    F sum[4] = {zero, zero, zero, zero};
    const auto check = [&](F y, F& into) { into = fma<Arch>(y * scale, zero, into); };
    std::size_t i = 0;
    for (; i + 4 * lane_count <= n; i += 4 * lane_count)
        unrolled<4>([&](auto j) { check(load<Arch>(x + i + j * lane_count), sum[j]); });
    for (; i + lane_count <= n; i += lane_count) check(load<Arch>(x + i), sum[0]);
    if (i != n) check(load_part<Arch>(x + i, n - i), sum[1]);
    return reduce_add<Arch>((sum[0] + sum[1]) + (sum[2] + sum[3])) == 0.0F;
}

#ifdef KVTL_INSTANCE
#define KVTL_FINITE(E, From)                                                                                 \
    KVTL_INSTANCE bool all_finite<E, default_arch, From>(const From*, std::size_t) noexcept;
#define KVTL_FINITE_AS(E) KVTL_FINITE(E, float) KVTL_FINITE(E, f16) KVTL_FINITE(E, bf16)
KVTL_FINITE_AS(float)
KVTL_FINITE_AS(f16)
KVTL_FINITE_AS(bf16)
#undef KVTL_FINITE_AS
#undef KVTL_FINITE
#endif

}}} // namespace kvtl::v0::simd
