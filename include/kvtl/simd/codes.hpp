// Rows of bytes, signed or E4M3: loads that convert, so that every kernel over rows works on codes too, and the
// way to codes and back.
//
// What:   a code stands for code * scale; kernels see the codes as floats and leave the scale to the caller.
// Shapes: codes (n), any alignment.
// Cost:   a load is two conversions per register for signed bytes, four for E4M3, and a quarter of the bytes of
//         f32; quantise() reads its row twice.
// Limits: quantise() needs finite numbers. Its codes lie in [-127, 127] (signed) or [-448, 448] (E4M3).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// An 8-bit float: a sign, 4 bits of exponent, 3 of mantissa. Kernels see the half float whose upper bits these
/// are, which is 2^-8 of the OCP's E4M3 (Micikevicius et al. 2022): the largest is 1.75 = 448 * 2^-8, the
/// smallest 2^-17. The two codes of NaN are never written; they read as 1.875 and -1.875.
struct e4m3 {
    std::uint8_t bits = 0;
    friend constexpr bool operator==(e4m3, e4m3) noexcept = default;
};

/// Codes of one byte.
template <class T>
concept byte_code = std::same_as<T, std::int8_t> || std::same_as<T, e4m3>;

/// What rows of kernels may consist of: numbers of an entry, or codes.
template <class T>
concept number = element<T> || byte_code<T>;

/// The largest code as a float.
template <byte_code Code> inline constexpr float largest_code = std::same_as<Code, e4m3> ? 1.75F : 127.0F;

[[nodiscard]] constexpr float code_value(std::int8_t code) noexcept {
    return static_cast<float>(code);
}
[[nodiscard]] constexpr float code_value(e4m3 code) noexcept {
    return to_float(f16{static_cast<std::uint16_t>((code.bits & 0x80U) << 8 | (code.bits & 0x7FU) << 7)});
}

/// The code nearest to x, with |x| at most a rounding error above the largest code. Ties go away from zero.
template <std::same_as<std::int8_t> Code> [[nodiscard]] inline Code to_code(float x) noexcept {
    return static_cast<Code>(x + std::copysign(0.5F, x));
}
/// The code nearest to x; beyond the largest code, the largest. Ties go to even codes.
template <std::same_as<e4m3> Code> [[nodiscard]] inline Code to_code(float x) noexcept {
    const float size = std::fabs(x) < largest_code<e4m3> ? std::fabs(x) : largest_code<e4m3>;
    // The power of two below, at least the smallest normal code. 2^20 of it have steps of an eighth of it.
    const std::uint32_t power = std::max(std::bit_cast<std::uint32_t>(size) & 0x7F800000U, 113U << 23);
    const float coarse = std::bit_cast<float>(power + (20U << 23)), rounded = (size + coarse) - coarse;
    const auto code = rounded < 0x1p-14F ? static_cast<std::uint32_t>(rounded * 0x1p17F)
                                         : (std::bit_cast<std::uint32_t>(rounded) - (112U << 23)) >> 20;
    return {static_cast<std::uint8_t>(code | (std::signbit(x) ? 0x80U : 0U))};
}

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

template <class Arch> [[gnu::always_inline]] inline floats<Arch> load(const e4m3* p) noexcept {
    // Spread to 16 bits with its sign and shifted into place, the sign is twice there: bit 14 has to go.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw>) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(-0x4001)));
    }
#endif
#if defined(__AVX2__) && defined(__F16C__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>) {
        const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(-0x4001)));
    }
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        // Read as the bits of a float, a code is 2^112 too small; the multiplication also normalises subnormals.
        int four = 0;
        std::memcpy(&four, p, sizeof four);
        const __m128i zero = _mm_setzero_si128();
        const __m128i top = _mm_unpacklo_epi16(zero, _mm_unpacklo_epi8(zero, _mm_cvtsi32_si128(four)));
        const __m128i kept = _mm_and_si128(_mm_srai_epi32(top, 4), _mm_set1_epi32(-0x78000001));
        return _mm_mul_ps(_mm_castsi128_ps(kept), _mm_set1_ps(0x1p112F));
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        std::int32_t four = 0;
        std::memcpy(&four, p, sizeof four);
        const int16x8_t wide = vshlq_n_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))), 7);
        const int16x4_t half = vget_low_s16(vandq_s16(wide, vdupq_n_s16(-0x4001)));
        return vcvt_f32_f16(vreinterpret_f16_s16(half));
    }
#endif
    float wide[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) wide[i] = code_value(p[i]);
    return load<Arch>(wide);
}

/// The first `n` < lanes codes, the other lanes zero. Never reads beyond p[n - 1].
template <class Arch, byte_code Code>
[[gnu::always_inline]] inline floats<Arch> load_part(const Code* p, std::size_t n) noexcept {
    Code whole[floats_per_register<Arch>] = {};
    for (std::size_t i = 0; i < n; ++i) whole[i] = p[i];
    return load<Arch>(whole);
}

/// codes[i] = in[i] / scale, rounded; returns the scale, the largest magnitude / the largest code. A row whose
/// scale is too small for a float (all zeros among them) becomes zeros.
template <element E, byte_code Code, class Arch = default_arch>
[[nodiscard]] inline float quantise(const E* in, Code* codes, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const std::size_t whole = n - n % lane_count;
    F top(0.0F);
    for (std::size_t i = 0; i < whole; i += lane_count) top = xsimd::max(top, xsimd::abs(load<Arch>(in + i)));
    float largest = reduce_max<Arch>(top);
    for (std::size_t i = whole; i < n; ++i) largest = std::max(largest, std::fabs(to_float(in[i])));
    const float scale = largest / largest_code<Code>;
    if (scale < std::numeric_limits<float>::min()) {
        std::fill_n(codes, n, Code{});
        return 0.0F;
    }
    for (std::size_t i = 0; i < whole; i += lane_count) {
        const F x = load<Arch>(in + i) / F(scale);
        if constexpr (std::same_as<Code, std::int8_t>) {
            std::int32_t wide[lane_count]; // at most 127.5 in magnitude, which truncates
            xsimd::to_int(x + (xsimd::bitofsign(x) | F(0.5F))).store_unaligned(wide);
            for (std::size_t j = 0; j < lane_count; ++j) codes[i + j] = static_cast<std::int8_t>(wide[j]);
        } else {
            float wide[lane_count];
            store<Arch>(wide, x);
            for (std::size_t j = 0; j < lane_count; ++j) codes[i + j] = to_code<Code>(wide[j]);
        }
    }
    for (std::size_t i = whole; i < n; ++i) codes[i] = to_code<Code>(to_float(in[i]) / scale);
    return scale;
}

/// out[i] = codes[i] * scale
template <element E, byte_code Code, class Arch = default_arch>
inline void dequantise(const Code* codes, float scale, E* out, std::size_t n) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count)
        store<Arch>(out + i, load<Arch>(codes + i) * floats<Arch>(scale));
    for (; i < n; ++i) out[i] = from_float<E>(code_value(codes[i]) * scale);
}

}}} // namespace kvtl::v0::simd
