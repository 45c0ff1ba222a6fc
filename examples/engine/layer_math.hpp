// The parts of a layer that are no products of matrices. One compiled function each, so that equal inputs give equal bits
// wherever they are called.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

namespace engine {

/// y = x / rms(x) * weight, for one row. x and y may be the same.
void rms_norm(const float* x, std::span<const float> weight, float epsilon, float* y) noexcept;

/// Cosine and sine of every pair's angle at a position, (pairs) each. frequencies: radians per position.
void rope_angles(std::span<const double> frequencies, double position, float* cosine, float* sine) noexcept;

/// Turns one head by these angles. neighbours: pairs are (2i, 2i + 1); otherwise (i, i + pairs).
void rotate_head(float* head, const float* cosine, const float* sine, std::size_t pairs,
                 bool neighbours) noexcept;

} // namespace engine
