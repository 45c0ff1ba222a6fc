// How much more a unit weighs than its mean key says, from how far its keys spread.
//
//   gain(sigma, n) ~ ln mean exp(x_i)    x_i: n logits of mean 0 and standard deviation sigma
//
//   gain = sigma^2 / 2                          while sigma^2 <= ln n    (x normal, n without end)
//        = sigma sqrt(ln n) - (ln n) / 2        beyond: the tangent, so that value and slope go on
//
// Why it bends: the square holds for an expectation, but a unit has n entries. The mean of n weights exp(x_i)
// has a relative variance of (exp(sigma^2) - 1) / n. Where sigma^2 = ln n that is 1, and from there on the
// sum is what its few largest entries make it, which the unit's moments do not know. The largest of n numbers
// grows with sigma, not with its square, and so does the logarithm of their mean weight: linearly (the frozen
// phase of B. Derrida, "Random-energy model", Phys. Rev. B 24, 2613 (1981), which begins at 2 ln n). The
// gain never exceeds what one entry can reach, the norm of the query times the largest distance that n
// points may have from their mean at this variance (Cauchy-Schwarz and Samuelson: sigma sqrt(D (n - 1))).
//
// Without the bend a unit's weight grows with exp(|q|^2): with small heads, or queries four times as long as
// those of the embedded model, one wide unit takes the whole softmax. What else was tried to bound it is in
// bench/DEAD_ENDS.md.
//
// sigma: |q| / sqrt(D) times the keys' standard deviation per dimension, i.e. the unit is taken to be equally
// wide in all directions: sigma^2 = |q|^2 m2 / (n D^2). A unit of one entry, or of equal ones, gains nothing.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvtl { inline namespace v0 { namespace detail {

/// Of a unit of n entries, what spread_gain() bends at: sqrt(ln n), the standard deviation beyond which n
/// logits are too few.
[[nodiscard]] inline float spread_bend(std::uint32_t entries) noexcept {
    return std::sqrt(std::log(static_cast<float>(std::max(1U, entries))));
}

/// sigma: standard deviation of the unit's logits, not negative; bend: spread_bend(n).
[[nodiscard]] inline float spread_gain(float sigma, float bend) noexcept {
    const float square = std::min(sigma, bend);
    return square * (sigma - 0.5F * square);
}

}}} // namespace kvtl::v0::detail
