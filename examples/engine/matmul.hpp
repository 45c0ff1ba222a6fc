// Products of stored weights with fp32 activations.
//
// Shapes: w (R, C) row-major in its stored type; x (T, C) and y (T, R) fp32 row-major; y[t][r] = sum_c
// w[r][c] x[t][c]. Cost:   every weight is read and converted once per call, whatever T is: a few rows at a
// time are expanded to floats
//         that stay in the L1 cache, and all T tokens are multiplied with them. With one token the time is
//         that of reading the weights; with many it is that of the multiplications.
// The result for a token does not depend on T or on the number of threads: every sum runs in the same order.
// SPDX-License-Identifier: MIT
#pragma once

#include "gguf.hpp"
#include "thread_pool.hpp"

#include <cstddef>
#include <span>

namespace engine {

/// Converts `count` weights that start at `first` of `row` (multiples of 32 for the quantised types).
void expand(tensor_type type, const std::byte* row, std::size_t first, std::size_t count,
            float* out) noexcept;

/// y = w x, plus `bias` (R) unless it is empty.
void matmul(thread_pool& pool, const tensor& w, std::span<const float> bias, const float* x,
            std::size_t tokens, float* y);

} // namespace engine
