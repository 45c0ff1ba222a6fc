// The row of codes that is nearest to an f32 query, without the distances of all others.
//
// What:   |q - s c|^2 = |q|^2 - 2 s q.c + s^2 |c|^2. With q rounded to 16 bits both products are integers, of which one
//         instruction adds up two terms each; that bounds every distance to a few parts in 10^5. Rows that may be nearest
//         after that, hardly ever more than one or two, get the distance that l2sq_codes() gives: row and distance are
//         those of a search through all of its results, bit by bit.
// Shapes: q (D), rows (N,D) of codes, scale (N), bound (N) scratch.
// Cost:   D / 8 integer multiply-adds of two per row (AVX-512), less than half the time of l2sq_codes(); with many rows of
//         the same distance that on top. Without AVX-512, or above 512 dimensions, l2sq_codes().
// Limits: ties go to the lower index.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/distance.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// The first of the least distances; {0, inf} of none.
[[nodiscard]] inline neighbour first_least(const float* distance, std::size_t n) noexcept {
    neighbour best;
    for (std::size_t i = 0; i < n; ++i)
        if (distance[i] < best.distance) best = {i, distance[i]};
    return best;
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)

/// A query in 16 bits, as far as a row's sum of products with codes has 32.
class short_query {
  public:
    static constexpr std::size_t most = 512; ///< dimensions: 512 * 127 * 32767 < 2^31

    /// False: it has a number that is not finite, or is too long or too short.
    [[nodiscard]] bool round(const float* q, std::size_t dim) noexcept {
        float largest = 0;
        for (std::size_t d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(q[d]));
        scale_ = largest / 32767.0F;
        if (dim > most || !(scale_ >= std::numeric_limits<float>::min() && scale_ < 1e15F)) return false;
        const float inverse = 1.0F / scale_;
        for (std::size_t d = 0; d < dim; ++d) {
            const float x = q[d] * inverse;
            const auto code =
                static_cast<std::int16_t>(std::clamp(x + std::copysign(.5F, x), -32767.0F, 32767.0F));
            code_[d] = code;
            const float apart = q[d] - scale_ * static_cast<float>(code);
            norm_ += q[d] * q[d];
            error_ += apart * apart;
        }
        for (std::size_t d = dim; d % 32 != 0; ++d) code_[d] = 0;
        error_ = std::sqrt(error_);
        return norm_ < std::numeric_limits<float>::infinity();
    }
    [[nodiscard]] const std::int16_t* codes() const noexcept { return code_; }
    [[nodiscard]] float scale() const noexcept { return scale_; }
    /// No row whose bound is greater is nearer than the one that has `least`.
    [[nodiscard]] float bar(float least) const noexcept {
        const float distance = std::max(least + norm_, 0.0F);
        const float rounded = 1e-5F * (norm_ + std::fabs(least)); // many times what sums of floats may be off
        return least + 4.0F * error_ * (std::sqrt(distance + rounded) + error_) + rounded;
    }

  private:
    alignas(64) std::int16_t code_[most];
    float scale_ = 0, norm_ = 0, error_ = 0; ///< of a code; |q|^2; |q - its codes|
};

/// bound[i] = |q - scale[i] rows[i]|^2 - |q|^2, nearly; returns the least. At least one register of rows.
template <class Arch>
[[nodiscard]] inline float bound_codes(const short_query& q, rows_view<std::int8_t> rows, const float* scale,
                                       float* bound) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t R = floats_per_register<Arch>, S = 4; // rows at once, and side by side
    const auto add = [](__m512i sum, __m512i a, __m512i b) __attribute__((always_inline)) {
#if defined(__AVX512VNNI__)
        return _mm512_dpwssd_epi32(sum, a, b);
#else
        return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
    };
    F least(std::numeric_limits<float>::infinity());
    const F twice(-2.0F * q.scale());
    for_row_blocks<R>(rows.count, [&](std::size_t first) {
        F sum[R];
        unrolled<R / S>([&](auto block) __attribute__((always_inline)) {
            __m512i product[S], square[S];
            unrolled<S>([&](auto s) { product[s] = square[s] = _mm512_setzero_si512(); });
            const auto step = [&](std::size_t d, auto load_from) __attribute__((always_inline)) {
                const __m512i query = _mm512_load_si512(q.codes() + d);
                unrolled<S>([&](auto s) __attribute__((always_inline)) {
                    const __m512i row = _mm512_cvtepi8_epi16(load_from(rows.row(first + block * S + s) + d));
                    product[s] = add(product[s], row, query);
                    square[s] = add(square[s], row, row);
                });
            };
            std::size_t d = 0;
            for (; d + 32 <= rows.dim; d += 32)
                step(
                    d, [](const std::int8_t* p) __attribute__((always_inline)) {
                        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
                    });
            if (const std::size_t rest = rows.dim - d; rest != 0)
                step(
                    d, [rest](const std::int8_t* p) __attribute__((always_inline)) {
                        return _mm256_maskz_loadu_epi8(static_cast<__mmask32>((1U << rest) - 1), p);
                    });
            unrolled<S>([&](auto s) __attribute__((always_inline)) {
                constexpr std::size_t r = block * S + s;
                sum[r] = fma<Arch>(F(scale[first + r]), F(_mm512_cvtepi32_ps(square[s])),
                                   twice * F(_mm512_cvtepi32_ps(product[s])));
            });
        });
        const F value = load<Arch>(scale + first) * reduce_add_each<Arch>(sum);
        store<Arch>(bound + first, value);
        least = xsimd::min(least, value);
    });
    return -reduce_max<Arch>(F(0.0F) - least);
}

#endif

template <class Arch = default_arch>
[[nodiscard]] KVTL_INLINE_KERNEL neighbour nearest_code(const float* q, rows_view<std::int8_t> rows,
                                                        const float* scale, float* bound) noexcept {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    if constexpr (std::derived_from<Arch, xsimd::avx512bw>) {
        using F = floats<Arch>;
        constexpr std::size_t R = floats_per_register<Arch>;
        short_query shorter;
        if (rows.count >= R && shorter.round(q, rows.dim)) {
            const float bar = shorter.bar(bound_codes<Arch>(shorter, rows, scale, bound));
            neighbour best;
            for_row_blocks<R>(rows.count, [&](std::size_t first) {
                if (!xsimd::any(load<Arch>(bound + first) <= F(bar))) return;
                float distance[R];
                l2sq_codes<Arch>(q, rows.slice(first, R), scale + first, distance);
                for (std::size_t i = 0; i < R; ++i)
                    if (distance[i] < best.distance) best = {first + i, distance[i]};
            });
            if (best.distance < std::numeric_limits<float>::infinity()) return best;
        }
    }
#endif
    l2sq_codes<Arch>(q, rows, scale, bound);
    return first_least(bound, rows.count);
}

#ifdef KVTL_INSTANCE
KVTL_INSTANCE neighbour nearest_code<default_arch>(const float*, rows_view<std::int8_t>, const float*,
                                                   float*) noexcept;
#endif

}}} // namespace kvtl::v0::simd
