// The mean of a growing unit: summed in f32 beside its open page, stored rounded.
//
// Updating a rounded mean in place would round once per entry. The mean would stop moving when its steps
// become smaller than the rounding.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/codes.hpp>
#include <kvtl/simd/convert.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace kvtl { inline namespace v0 { namespace detail {

/// A sum of rows of `width` numbers; lies in a policy's running bytes.
struct running_sum {
    [[nodiscard]] static constexpr std::size_t bytes(std::size_t width) noexcept {
        return width * sizeof(float);
    }
    /// `row` is entry i of the unit.
    static void add(float* sum, std::uint32_t i, const float* row, std::size_t width) noexcept {
        if (i == 0) std::fill_n(sum, width, 0.0F);
        simd::add(row, sum, width);
    }
    /// mean = sum / count
    template <element E>
    static void store(const float* sum, std::uint32_t count, E* mean, std::size_t width) noexcept {
        float some[64];
        for (std::size_t c = 0; c < width; c += std::size(some)) {
            const std::size_t n = std::min(std::size(some), width - c);
            std::copy_n(sum + c, n, some);
            simd::scale(1.0F / static_cast<float>(count), some, n);
            simd::encode(some, mean + c, n);
        }
    }
    /// The same as codes; returns their scale.
    [[nodiscard]] static float store(const float* sum, std::uint32_t count, std::int8_t* codes,
                                     std::size_t width) noexcept {
        return simd::quantise(sum, codes, width) / static_cast<float>(count);
    }
};

}}} // namespace kvtl::v0::detail
