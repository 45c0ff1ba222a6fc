// Rows of signed bytes: loads that convert, so that every kernel over rows works on codes too, and the way to
// codes and back.
//
// What:   a code stands for code * scale; kernels see the codes as floats and leave the scale to the caller.
// Shapes: codes (n), any alignment.
// Cost:   a load is two conversions per register and a quarter of the bytes of f32; quantise() reads its row
//         twice.
// Limits: codes of quantise() lie in [-127, 127]; its input is finite.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// What rows of kernels may consist of: numbers of an entry, or codes.
template <class T>
concept number = element<T> || std::same_as<T, std::int8_t>;

/// `floats_per_register<Arch>` consecutive codes as floats.
template <class Arch> [[gnu::always_inline]] inline floats<Arch> load(const std::int8_t* p) noexcept {
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

/// The first `n` < lanes codes, the other lanes zero. Never reads beyond p[n - 1].
template <class Arch>
[[gnu::always_inline]] inline floats<Arch> load_part(const std::int8_t* p, std::size_t n) noexcept {
    std::int8_t whole[floats_per_register<Arch>] = {};
    for (std::size_t i = 0; i < n; ++i) whole[i] = p[i];
    return load<Arch>(whole);
}

/// codes[i] = in[i] / scale, rounded; returns the scale, the largest magnitude / 127. A row whose scale is
/// too small for a float (all zeros among them) becomes zeros.
template <element E, class Arch = default_arch>
[[nodiscard]] inline float quantise(const E* in, std::int8_t* codes, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const std::size_t whole = n - n % lane_count;
    F top(0.0F);
    for (std::size_t i = 0; i < whole; i += lane_count) top = xsimd::max(top, xsimd::abs(load<Arch>(in + i)));
    float largest = reduce_max<Arch>(top);
    for (std::size_t i = whole; i < n; ++i) largest = std::max(largest, std::fabs(to_float(in[i])));
    const float scale = largest / 127.0F;
    if (scale < std::numeric_limits<float>::min()) {
        std::fill_n(codes, n, std::int8_t{0});
        return 0.0F;
    }
    // At most 127.5 in magnitude, which truncates.
    for (std::size_t i = 0; i < whole; i += lane_count) {
        const F x = load<Arch>(in + i) / F(scale);
        std::int32_t wide[lane_count];
        xsimd::to_int(x + (xsimd::bitofsign(x) | F(0.5F))).store_unaligned(wide);
        for (std::size_t j = 0; j < lane_count; ++j) codes[i + j] = static_cast<std::int8_t>(wide[j]);
    }
    for (std::size_t i = whole; i < n; ++i) {
        const float x = to_float(in[i]) / scale;
        codes[i] = static_cast<std::int8_t>(x + std::copysign(0.5F, x));
    }
    return scale;
}

/// out[i] = codes[i] * scale
template <element E, class Arch = default_arch>
inline void dequantise(const std::int8_t* codes, float scale, E* out, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count)
        store<Arch>(out + i, load<Arch>(codes + i) * floats<Arch>(scale));
    for (; i < n; ++i) out[i] = from_float<E>(static_cast<float>(codes[i]) * scale);
}

}}} // namespace kvtl::v0::simd
