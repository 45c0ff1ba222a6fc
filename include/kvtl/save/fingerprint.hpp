// A number that tells lists of settings apart. It finds differences, not malice.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace kvtl { inline namespace v0 {

/// FNV-1a, 64 bits.
class fingerprint_hash {
  public:
    void add(std::string_view text) noexcept {
        for (const char c : text) byte(static_cast<unsigned char>(c));
        byte(0); // so that "ab", "c" differs from "a", "bc"
    }
    /// Of any field of a config that is a number.
    template <class T> void add_number(const T& x) noexcept {
        static_assert(std::is_arithmetic_v<T>);
        std::uint64_t bits = 0;
        if constexpr (std::is_floating_point_v<T>)
            bits = std::bit_cast<std::uint64_t>(static_cast<double>(x));
        else
            bits = static_cast<std::uint64_t>(x);
        for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(bits >> (8 * i)));
    }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

  private:
    void byte(unsigned char b) noexcept { value_ = (value_ ^ b) * 0x100000001B3U; }
    std::uint64_t value_ = 0xCBF29CE484222325U;
};

}} // namespace kvtl::v0
