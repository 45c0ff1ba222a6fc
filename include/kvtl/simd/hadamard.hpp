// The Walsh-Hadamard transform of rows: a rotation that spreads a large number over all numbers of its block.
//
// What:   a row of D numbers is cut into blocks of B, the largest power of two that divides D. Each block x becomes
//         H x, with H[i][j] = (-1)^(number of ones of i & j) / sqrt(B). H is its own inverse. Two
//         rotated rows have the same inner product as the rows.
// Shapes: x (D) f32, in place, any alignment.
// Cost:   D log2 B additions. The steps within a register take a shuffle and a multiply-add.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

#include <algorithm>
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

/// R registers of numbers, as one block where the block is not shorter.
template <class Arch, std::size_t R>
[[gnu::always_inline]] inline void rotate_registers(float* x, std::size_t block,
                                                    const floats<Arch>& unit) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    F y[R];
    unrolled<R>([&](auto r) { y[r] = load<Arch>(x + r * lane_count) * unit; });
    unrolled<std::bit_width(R) - 1>([&](auto step) __attribute__((always_inline)) {
        unrolled<R>([&](auto r) __attribute__((always_inline)) {
            constexpr std::size_t apart = std::size_t{1} << step;
            if constexpr ((r & apart) == 0) {
                const F sum = y[r] + y[r + apart];
                y[r + apart] = y[r] - y[r + apart];
                y[r] = sum;
            }
        });
    });
    unrolled<std::bit_width(lane_count) - 1>([&](auto step) __attribute__((always_inline)) {
        constexpr std::size_t apart = std::size_t{1} << step;
        if (apart < block) unrolled<R>([&](auto r) { y[r] = sums_and_differences<Arch, apart>(y[r]); });
    });
    unrolled<R>([&](auto r) { store<Arch>(x + r * lane_count, y[r]); });
}

} // namespace detail

/// x = H x, block by block.
template <class Arch = default_arch> inline void hadamard(float* x, std::size_t dim) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>, most = 8; // registers
    const std::size_t block = hadamard_block(dim);
    const F unit(1.0F / std::sqrt(static_cast<float>(block)));
    for (std::size_t apart = block / 2; apart >= most * lane_count; apart /= 2)
        for (std::size_t first = 0; first < dim; first += 2 * apart)
            for (std::size_t i = first; i < first + apart; i += lane_count) {
                const F a = load<Arch>(x + i), b = load<Arch>(x + i + apart);
                store<Arch>(x + i, a + b);
                store<Arch>(x + i + apart, a - b);
            }
    std::size_t done = 0;
    const auto pieces = [&](auto registers) __attribute__((always_inline)) {
        constexpr std::size_t numbers = registers * lane_count;
        for (; done + numbers <= dim && (block >= numbers || registers == 1); done += numbers)
            detail::rotate_registers<Arch, registers>(x + done, block, unit);
    };
    pieces(constant<most>{});
    pieces(constant<4>{});
    pieces(constant<2>{});
    pieces(constant<1>{});
    if (const std::size_t rest = dim - done; rest != 0) { // blocks shorter than a register
        float part[lane_count] = {};
        std::copy_n(x + done, rest, part);
        detail::rotate_registers<Arch, 1>(part, block, unit);
        std::copy_n(part, rest, x + done);
    }
}

}}} // namespace kvtl::v0::simd
