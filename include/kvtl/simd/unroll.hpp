// Loops whose bounds are constants, so that small arrays of registers really stay in registers.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 { namespace simd {

/// A number as a type; a kernel that takes `auto` sees a constant.
template <std::size_t N> using constant = std::integral_constant<std::size_t, N>;

/// f(0), f(1), ... f(N - 1), written out. The arguments are `constant`s.
template <std::size_t N, class F> [[gnu::always_inline]] inline constexpr void unrolled(F&& f) noexcept {
    [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (f(constant<I>{}), ...);
    }
    (std::make_index_sequence<N>{});
}

/// Whether with_dim() makes a constant of it.
[[nodiscard]] constexpr bool is_common_dim(std::size_t dim) noexcept {
    return dim == 64 || dim == 128;
}

/// Calls f with the row length: as a constant for the two commonest head sizes, otherwise as a number. Each case is
/// code that every preset carries and every build compiles, so only kernels that gain much from a constant ask.
template <class F> [[gnu::always_inline]] inline void with_dim(std::size_t dim, F&& f) noexcept {
    switch (dim) {
    case 64:
        return f(constant<64>{});
    case 128:
        return f(constant<128>{});
    default:
        return f(dim);
    }
}

}}} // namespace kvtl::v0::simd
