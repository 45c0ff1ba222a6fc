// SIMD vocabulary of the kernels: a vector of floats per architecture, and loads and stores that convert.
//
// What:   the only header that includes xsimd. A kernel is a template over `Arch`, works on
//         `floats<Arch>` and reads its rows with `load`, whatever element type they are stored as.
// Shapes: a `floats<Arch>` holds `floats_per_register<Arch>` numbers: 4 (SSE, NEON), 8 (AVX) or 16 (AVX-512).
// Cost:   one instruction per load or store of f32, two or three for 16-bit elements. Without F16C or
//         AArch64 an f16 load takes ten, and an f16 store goes number by number.
// Limits: f16/bf16 conversions give the bits of element.hpp, except that hardware quiets a signalling
//         NaN and may keep the payload of a quiet one. `Arch` is a template parameter everywhere so that
//         translation units that were compiled for different processors never share a function.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

// gcc 12 reports the deliberately undefined registers of its own AVX-512 header wherever they are inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <xsimd/xsimd.hpp>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace kvtl { inline namespace v0 { namespace simd {

/// The best architecture that the compiler's flags allow.
using default_arch = xsimd::default_arch;

/// A register of floats, with arithmetic.
template <class Arch> using floats = xsimd::batch<float, Arch>;

/// Floats per register.
template <class Arch> inline constexpr std::size_t floats_per_register = floats<Arch>::size;

/// These must become part of the kernel's loop: a call per register costs more than the work.
#define KVTL_SIMD_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512BW__) && defined(__AVX512VL__)
/// The mask of the first n <= 16 lanes.
KVTL_SIMD_INLINE __mmask16 first_lanes(std::size_t n) noexcept {
    return static_cast<__mmask16>((1U << n) - 1);
}
#endif

// --------------------------------------------------------------------------------------------------- loads

/// `floats_per_register<Arch>` consecutive elements, from any address.
template <class Arch> KVTL_SIMD_INLINE floats<Arch> load(const float* p) noexcept {
    return floats<Arch>::load_unaligned(p);
}

template <class Arch> KVTL_SIMD_INLINE floats<Arch> load(const bf16* p) noexcept {
    // A bf16 is the upper half of a float: move it there and leave the lower half zero.
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
#endif
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        const uint16x4_t half = vld1_u16(reinterpret_cast<const std::uint16_t*>(p));
        return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
    }
#endif
    float wide[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) wide[i] = to_float(p[i]);
    return load<Arch>(wide);
}

template <class Arch> KVTL_SIMD_INLINE floats<Arch> load(const f16* p) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
#endif
#if defined(__F16C__)
    if constexpr (std::derived_from<Arch, xsimd::avx>) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
#elif defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        // Read as the bits of a float, a half is 2^112 too small; the multiplication also normalises
        // subnormals. Infinities and NaN, the largest magnitudes, get the largest exponent afterwards.
        const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
        const __m128i wide = _mm_unpacklo_epi16(half, _mm_setzero_si128());
        const __m128i sign = _mm_slli_epi32(_mm_and_si128(wide, _mm_set1_epi32(0x8000)), 16);
        const __m128i magnitude = _mm_slli_epi32(_mm_and_si128(wide, _mm_set1_epi32(0x7FFF)), 13);
        const __m128 scaled = _mm_mul_ps(_mm_castsi128_ps(magnitude), _mm_set1_ps(0x1p112F));
        const __m128i special = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32((0x7C00 << 13) - 1));
        const __m128i exponent = _mm_and_si128(special, _mm_set1_epi32(0x7F800000));
        return _mm_or_ps(scaled, _mm_castsi128_ps(_mm_or_si128(sign, exponent)));
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p))));
    }
#endif
    float wide[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) wide[i] = to_float(p[i]);
    return load<Arch>(wide);
}

/// The first `n` <= floats_per_register elements, zeros behind them. Never reads beyond p[n - 1].
template <class Arch, element E> KVTL_SIMD_INLINE floats<Arch> load_part(const E* p, std::size_t n) noexcept {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw>) {
        const __mmask16 first = first_lanes(n);
        if constexpr (std::is_same_v<E, float>)
            return _mm512_maskz_loadu_ps(first, p);
        else {
            const __m256i half = _mm256_maskz_loadu_epi16(first, p);
            if constexpr (std::is_same_v<E, f16>)
                return _mm512_cvtph_ps(half);
            else
                return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
    }
#endif
    E whole[floats_per_register<Arch>] = {};
    for (std::size_t i = 0; i < n; ++i) whole[i] = p[i];
    return load<Arch>(whole);
}

/// The first `n` <= floats_per_register numbers, `behind` in the lanes after them.
template <class Arch>
KVTL_SIMD_INLINE floats<Arch> load_part(const float* p, std::size_t n, float behind) noexcept {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw>)
        return _mm512_mask_loadu_ps(_mm512_set1_ps(behind), first_lanes(n), p);
#endif
    float whole[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) whole[i] = i < n ? p[i] : behind;
    return load<Arch>(whole);
}

/// Two registers of elements at once, in an order that is the same for every type.
template <class Arch> struct register_pair { floats<Arch> first, second; };

/// The numbers of p, or with AVX-512 those of even places, then those of odd ones: a bf16 at an odd place is a float already
/// but for the bits of its neighbour, so that 32 of them take one load, one shift and one mask.
template <class Arch> KVTL_SIMD_INLINE register_pair<Arch> load_pair(const bf16* p) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        const __m512i both = _mm512_loadu_si512(p);
        return {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-0x10000)))};
    }
#endif
    return {load<Arch>(p), load<Arch>(p + floats_per_register<Arch>)};
}
template <class Arch> KVTL_SIMD_INLINE register_pair<Arch> load_pair(const float* p) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
        return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
    }
#endif
    return {load<Arch>(p), load<Arch>(p + floats_per_register<Arch>)};
}

/// Whether rows of E are loaded faster two registers at a time.
template <class Arch, class E>
inline constexpr bool loads_pairs = floats_per_register<Arch> == 16 && std::is_same_v<E, bf16>;

// -------------------------------------------------------------------------------------------------- stores

/// Writes `floats_per_register<Arch>` elements to any address, rounding to nearest even.
template <class Arch> KVTL_SIMD_INLINE void store(float* p, const floats<Arch>& x) noexcept {
    x.store_unaligned(p);
}

template <class Arch> KVTL_SIMD_INLINE void store(bf16* p, const floats<Arch>& x) noexcept {
    // As from_float: add half a unit (less one when the kept part is even), keep the upper half; quiet a NaN.
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        const __m512i u = _mm512_castps_si512(x);
        const __m512i upper = _mm512_srli_epi32(u, 16);
        const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd);
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
        const __m512i rounded = _mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), nan, quiet);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
        return;
    }
#endif
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>) {
        const __m256i u = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
        const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
        return;
    }
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        const __m128i u = _mm_castps_si128(x);
        const __m128i odd = _mm_and_si128(_mm_srli_epi32(u, 16), _mm_set1_epi32(1));
        const __m128i sum = _mm_add_epi32(_mm_add_epi32(u, _mm_set1_epi32(0x7FFF)), odd);
        const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
        const __m128i quiet = _mm_or_si128(u, _mm_set1_epi32(0x400000));
        const __m128i mixed = _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, sum));
        const __m128i upper = _mm_srai_epi32(mixed, 16); // signed, so that the signed pack keeps all 16 bits
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(upper, upper));
        return;
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        const float32x4_t f = x;
        const uint32x4_t u = vreinterpretq_u32_f32(f);
        const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
        const uint32x4_t sum = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7FFF)), odd);
        const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
        const uint32x4_t mixed = vbslq_u32(vceqq_f32(f, f), sum, quiet);
        vst1_u16(reinterpret_cast<std::uint16_t*>(p), vshrn_n_u32(mixed, 16));
        return;
    }
#endif
    float wide[floats_per_register<Arch>];
    store<Arch>(wide, x);
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) p[i] = from_float<bf16>(wide[i]);
}

template <class Arch> KVTL_SIMD_INLINE void store(f16* p, const floats<Arch>& x) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#endif
#if defined(__F16C__)
    if constexpr (std::derived_from<Arch, xsimd::avx>) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        vst1_u16(reinterpret_cast<std::uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
        return;
    }
#endif
    float wide[floats_per_register<Arch>];
    store<Arch>(wide, x);
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) p[i] = from_float<f16>(wide[i]);
}

/// Writes the first `n` <= floats_per_register elements and touches nothing behind them.
template <class Arch, element E>
KVTL_SIMD_INLINE void store_part(E* p, const floats<Arch>& x, std::size_t n) noexcept {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw> && !std::is_same_v<E, bf16>) {
        const __mmask16 first = first_lanes(n);
        if constexpr (std::is_same_v<E, float>)
            _mm512_mask_storeu_ps(p, first, x);
        else
            _mm256_mask_storeu_epi16(p, first, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#endif
    E whole[floats_per_register<Arch>];
    store<Arch>(whole, x);
    for (std::size_t i = 0; i < n; ++i) p[i] = whole[i];
}

/// x, which stays in its register until its last use: gcc would rather load it again for every use, and
/// kernels that use a register several times are then bound by their loads.
template <class Arch> KVTL_SIMD_INLINE floats<Arch> keep(floats<Arch> x) noexcept {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) asm("" : "+v"(x.data));
#elif defined(__GNUC__) && !defined(__clang__) && defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2> || std::derived_from<Arch, xsimd::avx>)
        asm("" : "+x"(x.data));
#endif
    return x;
}

/// Writes a register as rows of R numbers, R a power of two, that are `stride` apart.
template <class Arch, std::size_t R>
KVTL_SIMD_INLINE void store_rows(float* p, std::size_t stride, const floats<Arch>& x) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    if constexpr (R >= lane_count) return store<Arch>(p, x);
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f> && R == 4) {
        _mm_storeu_ps(p, _mm512_castps512_ps128(x));
        _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(x, 1));
        _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(x, 2));
        _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(x, 3));
        return;
    }
#endif
    float all[lane_count];
    store<Arch>(all, x);
    for (std::size_t i = 0; i < lane_count; ++i) p[i / R * stride + i % R] = all[i];
}

/// Asks for the cache line at `p`; harmless for any address.
template <class Arch = default_arch> KVTL_SIMD_INLINE void prefetch(const void* p) noexcept {
    __builtin_prefetch(p);
}

/// The same for a line that is needed later: it goes to the L2 cache, and of the few that the L1 cache can wait for none.
template <class Arch = default_arch> KVTL_SIMD_INLINE void prefetch_later(const void* p) noexcept {
    __builtin_prefetch(p, 0, 2);
}

// ---------------------------------------------------------------------------------------------- arithmetic

/// x * y + z, in one rounding where the processor has it.
template <class Arch>
KVTL_SIMD_INLINE floats<Arch> fma(const floats<Arch>& x, const floats<Arch>& y,
                                  const floats<Arch>& z) noexcept {
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) { // xsimd 8 would multiply, then add
        return _mm512_fmadd_ps(x, y, z);
    }
#endif
    return xsimd::fma(x, y, z);
}

/// Sum of the lanes, always in the same order.
template <class Arch> KVTL_SIMD_INLINE float reduce_add(const floats<Arch>& x) noexcept {
#if XSIMD_VERSION_MAJOR >= 9
    return xsimd::reduce_add(x);
#else
    return xsimd::hadd(x);
#endif
}

/// Lane i of the result is the sum of the lanes of x[i], i < floats_per_register. Every sum is taken in the
/// same order, so equal registers give equal bits wherever they stand.
template <class Arch> KVTL_SIMD_INLINE floats<Arch> reduce_add_each(const floats<Arch>* x) noexcept {
    // A butterfly: each step interleaves two registers and adds, which halves the number of registers.
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        // Lane 4b + i of quad(j) is the sum of block b (128 bits) of x[4j + i].
        const auto quad = [x](std::size_t j) __attribute__((always_inline)) {
            const __m512 a = x[4 * j], b = x[4 * j + 1], c = x[4 * j + 2], d = x[4 * j + 3];
            const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
        };
        const __m512 first = quad(0), second = quad(1), third = quad(2), fourth = quad(3);
        const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x44),
                                         _mm512_shuffle_f32x4(first, second, 0xEE));
        const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(third, fourth, 0x44),
                                          _mm512_shuffle_f32x4(third, fourth, 0xEE));
        return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
    }
#endif
#if defined(__AVX__)
    if constexpr (std::derived_from<Arch, xsimd::avx>) {
        const auto quad = [x](std::size_t j) __attribute__((always_inline)) {
            const __m256 a = x[4 * j], b = x[4 * j + 1], c = x[4 * j + 2], d = x[4 * j + 3];
            const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
        };
        const __m256 low = quad(0), high = quad(1);
        return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                             _mm256_permute2f128_ps(low, high, 0x31));
    }
#endif
#if defined(__SSE2__)
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(x[0], x[1]), _mm_unpackhi_ps(x[0], x[1]));
        const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(x[2], x[3]), _mm_unpackhi_ps(x[2], x[3]));
        return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x44), _mm_shuffle_ps(ab, cd, 0xEE));
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
    }
#endif
    float sum[floats_per_register<Arch>];
    for (std::size_t i = 0; i < floats_per_register<Arch>; ++i) sum[i] = reduce_add<Arch>(x[i]);
    return load<Arch>(sum);
}

/// Largest lane; any lane may be -inf. With a NaN among them the result is one of the lanes. (AVX-512's own
/// reduction promises nothing then.)
template <class Arch> KVTL_SIMD_INLINE float reduce_max(const floats<Arch>& x) noexcept {
#if defined(__SSE2__)
    const auto of_four = [](__m128 v) __attribute__((always_inline)) {
        v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        return _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)));
    };
    if constexpr (std::derived_from<Arch, xsimd::sse2>) {
        return of_four(x);
    }
#endif
#if defined(__AVX__)
    const auto of_eight = [&](__m256 v) __attribute__((always_inline)) {
        return of_four(_mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
    };
    if constexpr (std::derived_from<Arch, xsimd::avx>) {
        return of_eight(x);
    }
#endif
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
        return of_eight(_mm256_max_ps(_mm512_castps512_ps256(x), high));
    }
#endif
#if defined(__aarch64__)
    if constexpr (std::derived_from<Arch, xsimd::neon64>) {
        return vmaxvq_f32(x);
    }
#endif
    float lane[floats_per_register<Arch>];
    store<Arch>(lane, x);
    float largest = lane[0];
    for (std::size_t i = 1; i < floats_per_register<Arch>; ++i)
        largest = lane[i] > largest ? lane[i] : largest;
    return largest;
}

/// e^x to 1.1 ulp; 0 below e^-87.33, where floats end that are normal numbers, and for -inf; overflow inf, NaN NaN. A result
/// that is subnormal, or would be before it is rounded to 0, takes Intel's cores 150 cycles and more, and so does every product
/// with it. A softmax has no use for one, but has -inf in every register that rows do not fill.
template <class Arch> KVTL_SIMD_INLINE floats<Arch> exp(const floats<Arch>& argument) noexcept {
    using F = floats<Arch>;
    // Beyond these bounds the result is 0 or inf, and within them every step is finite. The bound comes first
    // because x86's min and max return their second operand when one is NaN. xsimd 14 swaps the operands.
    const F least(-87.33F);
#if XSIMD_VERSION_MAJOR < 14
    const F x = xsimd::min(F(89.0F), xsimd::max(least, argument));
#else
    const F x = xsimd::min(xsimd::max(argument, least), F(89.0F));
#endif
    // x = n ln2 + r with |r| <= ln2 / 2. Adding 1.5 * 2^23 rounds to an integer; ln2 is split in two so that
    // n times its upper part is exact.
    const F magic(12582912.0F);
    const F n = (x * F(1.44269504F) + magic) - magic;
    const F r = fma<Arch>(n, F(2.12194440e-4F), fma<Arch>(n, F(-0.693359375F), x));
    // (e^r - 1 - r) / r^2, interpolated at the Chebyshev nodes of the interval; 1.1e-8 relative error.
    F p = fma<Arch>(r, F(1.39262131e-3F), F(8.36320315e-3F));
    p = fma<Arch>(r, p, F(4.16665561e-2F));
    p = fma<Arch>(r, p, F(1.66665763e-1F));
    p = fma<Arch>(r, p, F(0.5F));
    p = fma<Arch>(r * r, p, r) + F(1.0F);
#if defined(__AVX512F__)
    if constexpr (std::derived_from<Arch, xsimd::avx512f>) {
        // Not below: a NaN is neither.
        return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(argument, least, _CMP_NLT_UQ), p, n);
    }
#endif
    // 2^n in two factors: n = 128 is no exponent of a float, its half is.
    const F half = (n * F(0.5F) + magic) - magic;
    const F power = xsimd::ldexp(xsimd::ldexp(p, xsimd::to_int(half)), xsimd::to_int(n - half));
    return xsimd::select(argument < least, F(0.0F), power);
}

/// The natural logarithm of normal numbers, to two units in the last place; -inf for 0. xsimd's own does not compile without
/// optimisation for AVX-512 (8.1).
template <class Arch> KVTL_SIMD_INLINE floats<Arch> log(const floats<Arch>& x) noexcept {
    using F = floats<Arch>;
    using I = xsimd::batch<std::int32_t, Arch>;
    // x = 2^e m with m in [sqrt(1/2), sqrt(2)), by the bits: an exponent begins at those of sqrt(1/2).
    const I bits = std::bit_cast<I>(x), e = (bits - I(0x3F3504F3)) >> 23;
    const F f = std::bit_cast<F>(bits - (e << 23)) - F(1.0F), square = f * f, n = xsimd::to_float(e);
    // ln(1 + f) = f - f^2 / 2 + f^3 p(f), the polynomial of the Cephes library; ln2 in two parts as in exp.
    F p = fma<Arch>(f, F(7.0376836292e-2F), F(-1.1514610310e-1F));
    p = fma<Arch>(f, p, F(1.1676998740e-1F));
    p = fma<Arch>(f, p, F(-1.2420140846e-1F));
    p = fma<Arch>(f, p, F(1.4249322787e-1F));
    p = fma<Arch>(f, p, F(-1.6668057665e-1F));
    p = fma<Arch>(f, p, F(2.0000714765e-1F));
    p = fma<Arch>(f, p, F(-2.4999993993e-1F));
    p = fma<Arch>(f, p, F(3.3333331174e-1F));
    p = fma<Arch>(n, F(-2.12194440e-4F), f * square * p);
    const F of_normal = fma<Arch>(n, F(0.693359375F), fma<Arch>(square, F(-0.5F), p) + f);
    return xsimd::select(x == F(0.0F), F(-std::numeric_limits<float>::infinity()), of_normal);
}

#undef KVTL_SIMD_INLINE

/// What takes more bytes than this, about an L2 cache, is taken to come from memory, where a single query reads one stream
/// faster than several side by side.
inline constexpr std::size_t streamed_bytes = std::size_t{1} << 20;
/// So far ahead a stream asks for what it reads: as much as memory answers meanwhile, piece by piece.
inline constexpr std::size_t stream_ahead_bytes = 4096;

}}} // namespace kvtl::v0::simd
