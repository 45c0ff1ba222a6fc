// The pieces of a softmax over f32 logits.
//
// Shapes: x (n).
// Cost:   one pass each; an exponential is about ten instructions per register.
// Limits: no overflow for any finite logits when the shift is their maximum; -inf means "absent" and
//         weighs 0.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvtl { inline namespace v0 { namespace simd {

/// The largest number; -inf when there is none. A NaN may be returned or passed over.
template <class Arch = default_arch>
[[nodiscard]] inline float max_of(const float* x, std::size_t n) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F a(-std::numeric_limits<float>::infinity());
    F b = a;
    std::size_t i = 0;
    for (; i + 2 * lane_count <= n; i += 2 * lane_count) {
        a = xsimd::max(a, load<Arch>(x + i));
        b = xsimd::max(b, load<Arch>(x + i + lane_count));
    }
    if (i + lane_count <= n) {
        a = xsimd::max(a, load<Arch>(x + i));
        i += lane_count;
    }
    float last[lane_count]; // what is left, and -inf
    for (std::size_t j = 0; j < lane_count; ++j)
        last[j] = i + j < n ? x[i + j] : -std::numeric_limits<float>::infinity();
    return reduce_max<Arch>(xsimd::max(xsimd::max(a, b), load<Arch>(last)));
}

/// x[i] = the largest of the `width` numbers from x[i * width] on, for i < n, in place; width > 0. A NaN may be passed over.
template <class Arch = default_arch>
inline void max_of_each(float* x, std::size_t n, std::size_t width) noexcept {
    const auto greater = [](float a, float b) { return a > b ? a : b; }; // std::max would take addresses
    if (width == 4) { // what methods that read small groups have
        for (std::size_t i = 0; i < n; ++i) {
            const float* of = x + 4 * i;
            x[i] = greater(greater(of[0], of[1]), greater(of[2], of[3]));
        }
    } else if (width >= floats_per_register<Arch>) {
        for (std::size_t i = 0; i < n; ++i) x[i] = max_of<Arch>(x + i * width, width);
    } else {
        for (std::size_t i = 0; i < n; ++i) {
            float best = x[i * width];
            for (std::size_t e = 1; e < width; ++e) best = greater(x[i * width + e], best);
            x[i] = best;
        }
    }
}

/// x[i] = exp(factor * (x[i] - shift)); returns their sum.
template <class Arch = default_arch>
inline float exp_shifted_sum(float* x, std::size_t n, float shift, float factor = 1.0F) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const F subtract(shift), scale(factor);
    F sum(0.0F);
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) {
        const F weight = exp<Arch>((load<Arch>(x + i) - subtract) * scale);
        store<Arch>(x + i, weight);
        sum += weight;
    }
    float total = reduce_add<Arch>(sum);
    if (const std::size_t rest = n - i; rest != 0) {
        float weight[lane_count];
        store<Arch>(weight, exp<Arch>((load_part<Arch>(x + i, rest) - subtract) * scale));
        for (std::size_t j = 0; j < rest; ++j) total += x[i + j] = weight[j];
    }
    return total;
}

/// log(sum of exp(x[i])); -inf when all are -inf or n is 0, +inf when one is +inf.
template <class Arch = default_arch>
[[nodiscard]] inline float log_sum_exp(const float* x, std::size_t n) noexcept {
    const float largest = max_of<Arch>(x, n);
    if (std::isinf(largest)) return largest;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const floats<Arch> subtract(largest);
    floats<Arch> sum(0.0F);
    std::size_t i = 0;
    for (; i + lane_count <= n; i += lane_count) sum += exp<Arch>(load<Arch>(x + i) - subtract);
    float total = reduce_add<Arch>(sum);
    if (const std::size_t rest = n - i; rest != 0) {
        float weight[lane_count];
        store<Arch>(weight, exp<Arch>(load_part<Arch>(x + i, rest) - subtract));
        for (std::size_t j = 0; j < rest; ++j) total += weight[j];
    }
    return largest + std::log(total);
}

}}} // namespace kvtl::v0::simd
