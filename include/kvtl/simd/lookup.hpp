// Table entries that codes name: sums of them, with which product codes score, and rows of them, for codes of 2 to 4 bits.
//
// Shapes: sum_lookups: table (m, C) f32, code (n, m) bytes below C with `stride` from code to code, out (n).
//         expand_levels: codes of B bits, eight after eight in B bytes, the first in the lowest bits; level (2^B) f32.
// Cost:   sum_lookups: m loads of a byte and m of a float per code. Four codes run side by side to hide the latency of
//         their loads. expand_levels: a shift and one or two lookups in registers for eight codes (AVX2), else one by one.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <cstring>

namespace kvtl { inline namespace v0 { namespace simd {

/// out[i] = sum over s < m of table[s * columns + code[i * stride + s]]
template <class Arch = default_arch>
inline void sum_lookups(const float* table, std::size_t columns, std::size_t m, const std::uint8_t* code,
                        std::size_t stride, std::size_t n, float* out) noexcept {
    constexpr std::size_t side = 4;
    std::size_t i = 0;
    for (; i + side <= n; i += side, code += side * stride) {
        float sum[side] = {};
        for (std::size_t s = 0; s < m; ++s)
            unrolled<side>([&](auto j) { sum[j] += table[s * columns + code[j * stride + s]]; });
        unrolled<side>([&](auto j) { out[i + j] = sum[j]; });
    }
    for (; i < n; ++i, code += stride) {
        float sum = 0;
        for (std::size_t s = 0; s < m; ++s) sum += table[s * columns + code[s]];
        out[i] = sum;
    }
}

/// Codes that expand_levels() writes at once, and so what `out` has room for multiples of.
inline constexpr std::size_t codes_at_once = 8;

/// out[i] = level[code i] for i < n, and as many more as make n a multiple of codes_at_once.
template <std::size_t Bits, class Arch = default_arch>
inline void expand_levels(const std::byte* codes, std::size_t n, const float* level, float* out) noexcept {
    static_assert(Bits >= 2 && Bits <= 4);
    const auto eight = [&](std::size_t i) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, codes + i / codes_at_once * Bits, Bits);
        return bits;
    };
#if defined(__AVX2__)
    if constexpr (std::derived_from<Arch, xsimd::avx2>) {
        constexpr int b = Bits;
        const __m256i shift = _mm256_setr_epi32(0, b, 2 * b, 3 * b, 4 * b, 5 * b, 6 * b, 7 * b);
        // A lookup reads three bits. Of codes of 2 bits one is the next code's, so levels repeat.
        const __m256 low = Bits == 2 ? _mm256_broadcast_ps(reinterpret_cast<const __m128*>(level))
                                     : _mm256_loadu_ps(level),
                     high = Bits == 4 ? _mm256_loadu_ps(level + 8) : low;
        for (std::size_t i = 0; i < n; i += codes_at_once) {
            const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(eight(i))), shift);
            __m256 x = _mm256_permutevar8x32_ps(low, code);
            if constexpr (Bits == 4) // the fourth bit chooses, as a sign
                x = _mm256_blendv_ps(x, _mm256_permutevar8x32_ps(high, code),
                                     _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
            _mm256_storeu_ps(out + i, x);
        }
        return;
    }
#endif
    for (std::size_t i = 0; i < n; i += codes_at_once) {
        std::uint32_t bits = eight(i);
        for (std::size_t j = 0; j < codes_at_once; ++j, bits >>= Bits)
            out[i + j] = level[bits & ((1U << Bits) - 1)];
    }
}

}}} // namespace kvtl::v0::simd
