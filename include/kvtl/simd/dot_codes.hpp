// Inner products of f32 queries with rows of signed bytes.
//
// Shapes: q (D), codes (D).
// Cost:   D multiply-adds and two conversions per register; a quarter of the bytes of f32.
// Limits: f32 sums, in an order that depends on Arch.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <cstdint>
#include <cstring>

namespace kvtl { inline namespace v0 { namespace simd {

/// `floats_per_register<Arch>` consecutive codes as floats.
template <class Arch> [[gnu::always_inline]] inline floats<Arch> load_codes(const std::int8_t* p) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#endif
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        int four = 0;
        std::memcpy(&four, p, sizeof four);
        const __m128i zero = _mm_setzero_si128();
        const __m128i top = _mm_unpacklo_epi16(zero, _mm_unpacklo_epi8(zero, _mm_cvtsi32_si128(four)));
        return _mm_cvtepi32_ps(_mm_srai_epi32(top, 24)); // from the highest byte down, sign and all
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        std::int32_t four = 0;
        std::memcpy(&four, p, sizeof four);
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
    }
#endif
    float wide[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) wide[i] = static_cast<float>(p[i]);
    return load<Arch>(wide);
}

/// sum of q[i] * codes[i]
template <class Arch = default_arch>
[[nodiscard]] inline float dot_codes(const float* q, const std::int8_t* codes, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F sum[4] = {F(0.0F), F(0.0F), F(0.0F), F(0.0F)};
    std::size_t i = 0;
    for (; i + 4 * lane_count <= n; i += 4 * lane_count)
        unrolled<4>([&](auto j) {
            const std::size_t at = i + j * lane_count;
            sum[j] = fma<Arch>(load<Arch>(q + at), load_codes<Arch>(codes + at), sum[j]);
        });
    for (; i + lane_count <= n; i += lane_count)
        sum[0] = fma<Arch>(load<Arch>(q + i), load_codes<Arch>(codes + i), sum[0]);
    float total = reduce_add<Arch>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; ++i) total += q[i] * static_cast<float>(codes[i]);
    return total;
}

}}} // namespace kvtl::v0::simd
