// Storage types of cache entries: 16-bit floats without arithmetic. The conversions here are scalar, and the
// reference of the SIMD conversions in simd/.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// IEEE 754 binary16, stored only.
struct f16 {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(f16, f16) noexcept = default;
};

/// bfloat16: the upper half of a binary32, stored only.
struct bf16 {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(bf16, bf16) noexcept = default;
};

/// The types in which the numbers of an entry may be stored.
template <class T>
concept element = std::same_as<T, float> || std::same_as<T, f16> || std::same_as<T, bf16>;

template <element E> [[nodiscard]] constexpr std::string_view element_name() noexcept {
    if constexpr (std::same_as<E, f16>)
        return "f16";
    else if constexpr (std::same_as<E, bf16>)
        return "bf16";
    else
        return "f32";
}

[[nodiscard]] constexpr float to_float(float x) noexcept {
    return x;
}

[[nodiscard]] constexpr float to_float(bf16 x) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

[[nodiscard]] constexpr float to_float(f16 x) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
    const std::uint32_t exponent = (x.bits >> 10) & 0x1FU;
    std::uint32_t mantissa = x.bits & 0x3FFU;
    if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
    if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
    if (mantissa == 0) return std::bit_cast<float>(sign);
    std::uint32_t shift = 0; // a subnormal f16 is a normal binary32: normalise it
    while ((mantissa & 0x400U) == 0) {
        mantissa <<= 1;
        ++shift;
    }
    return std::bit_cast<float>(sign | ((113U - shift) << 23) | ((mantissa & 0x3FFU) << 13));
}

/// The largest finite number of E.
template <element E> [[nodiscard]] constexpr float largest_of() noexcept {
    if constexpr (std::same_as<E, f16>)
        return 65504.0F;
    else
        return std::bit_cast<float>(std::same_as<E, bf16> ? 0x7F7F0000U : 0x7F7FFFFFU);
}

/// Rounds to nearest even; overflow becomes infinity, NaN stays NaN.
template <element E> [[nodiscard]] constexpr E from_float(float x) noexcept {
    if constexpr (std::same_as<E, float>) {
        return x;
    } else {
        const auto u = std::bit_cast<std::uint32_t>(x);
        const bool nan = (u & 0x7FFFFFFFU) > 0x7F800000U;
        if constexpr (std::same_as<E, bf16>) {
            if (nan) return bf16{static_cast<std::uint16_t>((u >> 16) | 0x40U)};
            return bf16{static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
        } else {
            const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
            if (nan) return f16{static_cast<std::uint16_t>(sign | 0x7E00U)};
            const std::uint32_t magnitude = u & 0x7FFFFFFFU;
            if (magnitude >= 0x477FF000U)
                return f16{static_cast<std::uint16_t>(sign | 0x7C00U)}; // rounds to inf
            if (magnitude < 0x38800000U) { // subnormal f16 or zero: shift the full mantissa into place
                if (magnitude < 0x33000000U) return f16{sign};
                const std::uint32_t exponent = magnitude >> 23;
                const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
                const std::uint32_t shift = 126U - exponent;
                const std::uint32_t half = 1U << (shift - 1);
                const std::uint32_t floor = mantissa >> shift;
                const std::uint32_t rest = mantissa & ((1U << shift) - 1);
                const std::uint32_t up = (rest > half || (rest == half && (floor & 1U) != 0)) ? 1U : 0U;
                return f16{static_cast<std::uint16_t>(sign | (floor + up))};
            }
            const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
            return f16{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
        }
    }
}

}} // namespace kvtl::v0
