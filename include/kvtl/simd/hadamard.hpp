// The Walsh-Hadamard transform of rows: a rotation that spreads a large number over all numbers of its block.
//
// What:   a row of D numbers is cut into blocks of B, the largest power of two that divides D. Each block x becomes
//         H x, with H[i][j] = (-1)^(number of ones of i & j) / sqrt(B). H is its own inverse, and inner products of
//         two rotated rows are those of the rows.
// Shapes: x (D) f32, in place, any alignment.
// Cost:   D log2 B additions. The steps within a register take a shuffle and a multiply-add.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <utility>

namespace kvtl { inline namespace v0 { namespace simd {

/// B for rows of `dim` numbers.
[[nodiscard]] constexpr std::size_t hadamard_block(std::size_t dim) noexcept {
    return std::size_t{1} << std::countr_zero(dim);
}

namespace detail {

/// Lane i: the sum of lanes i and i + Apart, or lane i - Apart minus lane i.
template <class Arch, std::size_t Apart>
[[gnu::always_inline]] inline floats<Arch> sums_and_differences(const floats<Arch>& x) noexcept {
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    static constexpr auto sign = [] {
        std::array<float, lane_count> all{};
        for (std::size_t i = 0; i < lane_count; ++i) all[i] = (i & Apart) != 0 ? -1.0F : 1.0F;
        return all;
    }();
    const auto other = [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        return floats<Arch>(__builtin_shufflevector(x.data, x.data, static_cast<int>(I ^ Apart)...));
    }
    (std::make_index_sequence<lane_count>{});
    return fma<Arch>(x, load<Arch>(sign.data()), other);
}

} // namespace detail

/// x = H x, block by block.
template <class Arch = default_arch> inline void hadamard(float* x, std::size_t dim) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const std::size_t block = hadamard_block(dim);
    const F unit(1.0F / std::sqrt(static_cast<float>(block)));
    const auto within = [&](F y) __attribute__((always_inline)) {
        y = y * unit;
        unrolled<std::bit_width(lane_count) - 1>([&](auto step) __attribute__((always_inline)) {
            constexpr std::size_t apart = std::size_t{1} << step;
            if (apart < block) y = detail::sums_and_differences<Arch, apart>(y);
        });
        return y;
    };
    std::size_t whole = 0;
    for (; whole + lane_count <= dim; whole += lane_count) store<Arch>(x + whole, within(load<Arch>(x + whole)));
    if (const std::size_t rest = dim - whole; rest != 0)
        store_part<Arch>(x + whole, within(load_part<Arch>(x + whole, rest)), rest);
    for (std::size_t apart = lane_count; apart < block; apart *= 2)
        for (std::size_t first = 0; first < dim; first += 2 * apart)
            for (std::size_t i = first; i < first + apart; i += lane_count) {
                const F a = load<Arch>(x + i), b = load<Arch>(x + i + apart);
                store<Arch>(x + i, a + b);
                store<Arch>(x + i + apart, a - b);
            }
}

}}} // namespace kvtl::v0::simd
