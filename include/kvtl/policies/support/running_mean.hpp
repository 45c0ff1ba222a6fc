// The mean of the unit that a lane is building: summed in f32, stored rounded.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/convert.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace kvtl { inline namespace v0 { namespace detail {

/// One per lane, `width` floats behind it. Updating a mean of f16 in place would round once per entry and
/// stop moving when steps become small. Units of a sequence are built one after the other, so one sum is
/// enough; a unit that grows after another was begun continues from its rounded mean.
struct alignas(64) running_mean {
    std::uint32_t unit = 0;
    std::uint32_t count = 0;

    [[nodiscard]] static constexpr std::size_t bytes(std::size_t width) noexcept {
        return sizeof(running_mean) + (width * sizeof(float) + 63) / 64 * 64;
    }
    /// `key` is entry i of unit u, whose mean becomes that of entries 0 to i. mean, key: (width)
    template <element E>
    void absorb(std::uint32_t u, std::uint32_t i, const float* key, E* mean, std::size_t width) noexcept {
        float* sum = reinterpret_cast<float*>(this + 1);
        if (i == 0) {
            std::fill_n(sum, width, 0.0F);
        } else if (unit != u || count != i) {
            simd::decode(mean, sum, width);
            simd::scale(static_cast<float>(i), sum, width);
        }
        unit = u;
        count = i + 1;
        simd::add(key, sum, width);
        float some[64];
        for (std::size_t c = 0; c < width; c += std::size(some)) {
            const std::size_t n = std::min(std::size(some), width - c);
            std::copy_n(sum + c, n, some);
            simd::scale(1.0F / static_cast<float>(count), some, n);
            simd::encode(some, mean + c, n);
        }
    }
};

}}} // namespace kvtl::v0::detail
