// SPDX-License-Identifier: MIT
#include "matmul.hpp"

#include <kvtl/element.hpp>
#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace engine {

namespace {

using arch = kvtl::simd::default_arch;
using floats = kvtl::simd::floats<arch>;
constexpr std::size_t lanes = kvtl::simd::floats_per_register<arch>;

constexpr std::size_t block = 32;   ///< weights of a quantised block, which begins with its f16 scale
constexpr std::size_t panel = 4;    ///< rows that one task expands and multiplies
constexpr std::size_t piece = 1024; ///< columns expanded at a time: panel * piece floats are half an L1 cache

float scale_of(const std::byte* p) noexcept {
    kvtl::f16 scale;
    std::memcpy(&scale, p, sizeof scale);
    return kvtl::to_float(scale);
}

// A block's bytes are copied first: through a pointer they could alias the output, and nothing would be
// vectorised.

void expand_q8_0(const std::byte* p, std::size_t count, float* out) noexcept {
    for (std::size_t i = 0; i < count; i += block, p += 2 + block) {
        const float scale = scale_of(p);
        std::int8_t q[block];
        std::memcpy(q, p + 2, sizeof q);
        for (std::size_t j = 0; j < block; ++j) out[i + j] = scale * static_cast<float>(q[j]);
    }
}

/// The low nibbles of a block are its first half, the high nibbles its second; both are offset by 8.
void expand_q4_0(const std::byte* p, std::size_t count, float* out) noexcept {
    for (std::size_t i = 0; i < count; i += block, p += 2 + block / 2) {
        const float scale = scale_of(p);
        std::uint8_t q[block / 2];
        std::memcpy(q, p + 2, sizeof q);
        for (std::size_t j = 0; j < block / 2; ++j) out[i + j] = scale * static_cast<float>((q[j] & 0xF) - 8);
        for (std::size_t j = 0; j < block / 2; ++j)
            out[i + j + block / 2] = scale * static_cast<float>((q[j] >> 4) - 8);
    }
}

template <class Half> void expand_half(const std::byte* p, std::size_t count, float* out) noexcept {
    const auto* from = reinterpret_cast<const Half*>(p);
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes) kvtl::simd::store<arch>(out + i, kvtl::simd::load<arch>(from + i));
    for (; i < count; ++i) out[i] = kvtl::to_float(from[i]);
}

/// Adds Rows x Tokens inner products of n numbers to y. Each register of weights is used for every token, and
/// each register of activations for every row.
template <std::size_t Rows, std::size_t Tokens>
void tile(const float* w, const float* x, std::size_t x_stride, std::size_t n, float* y,
          std::size_t y_stride) noexcept {
    floats sum[Rows][Tokens];
    for (auto& row : sum)
        for (auto& s : row) s = floats(0.0F);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        floats xs[Tokens];
        for (std::size_t t = 0; t < Tokens; ++t) xs[t] = kvtl::simd::load<arch>(x + t * x_stride + i);
        for (std::size_t r = 0; r < Rows; ++r) {
            const floats weights = kvtl::simd::load<arch>(w + r * piece + i);
            for (std::size_t t = 0; t < Tokens; ++t)
                sum[r][t] = kvtl::simd::fma<arch>(weights, xs[t], sum[r][t]);
        }
    }
    for (std::size_t r = 0; r < Rows; ++r)
        for (std::size_t t = 0; t < Tokens; ++t) {
            float total = kvtl::simd::reduce_add<arch>(sum[r][t]);
            for (std::size_t j = i; j < n; ++j) total += w[r * piece + j] * x[t * x_stride + j];
            y[t * y_stride + r] += total;
        }
}

/// Two tokens at a time: 8 sums, 4 weights and 2 activations fit the 16 registers of AVX2.
template <std::size_t Rows>
void tiles(const float* w, const float* x, std::size_t x_stride, std::size_t n, std::size_t tokens, float* y,
           std::size_t y_stride) noexcept {
    std::size_t t = 0;
    for (; t + 2 <= tokens; t += 2)
        tile<Rows, 2>(w, x + t * x_stride, x_stride, n, y + t * y_stride, y_stride);
    if (t < tokens) tile<Rows, 1>(w, x + t * x_stride, x_stride, n, y + t * y_stride, y_stride);
}

} // namespace

void expand(tensor_type type, const std::byte* row, std::size_t first, std::size_t count,
            float* out) noexcept {
    switch (type) {
    case tensor_type::f32:
        std::memcpy(out, row + first * 4, count * 4);
        break;
    case tensor_type::f16:
        expand_half<kvtl::f16>(row + first * 2, count, out);
        break;
    case tensor_type::bf16:
        expand_half<kvtl::bf16>(row + first * 2, count, out);
        break;
    case tensor_type::q8_0:
        expand_q8_0(row + first / block * 34, count, out);
        break;
    case tensor_type::q4_0:
        expand_q4_0(row + first / block * 18, count, out);
        break;
    }
}

void matmul(thread_pool& pool, const tensor& w, std::span<const float> bias, const float* x,
            std::size_t tokens, float* y) {
    const std::size_t rows = w.rows;
    const std::size_t columns = w.columns;
    const std::size_t row_bytes = *bytes_of(w.type, columns);
    const std::size_t panels = (rows + panel - 1) / panel;
    // A few tasks per thread, so that none waits long for the others; but a product of some microseconds is
    // done sooner than it is handed out.
    constexpr std::size_t least_work = 1 << 16;
    const std::size_t wanted =
        std::min<std::size_t>(rows * columns * tokens / least_work, std::size_t{pool.size()} * 4);
    const std::size_t tasks = std::clamp<std::size_t>(wanted, 1, panels);
    pool.parallel(tasks, [&](std::size_t task) noexcept {
        alignas(64) float expanded[panel * piece];
        for (std::size_t p = panels * task / tasks; p < panels * (task + 1) / tasks; ++p) {
            const std::size_t first = p * panel;
            const std::size_t count = std::min(panel, rows - first);
            for (std::size_t t = 0; t < tokens; ++t)
                for (std::size_t r = 0; r < count; ++r)
                    y[t * rows + first + r] = bias.empty() ? 0.0F : bias[first + r];
            for (std::size_t c = 0; c < columns; c += piece) {
                const std::size_t n = std::min(piece, columns - c);
                for (std::size_t r = 0; r < count; ++r)
                    expand(w.type, w.data + (first + r) * row_bytes, c, n, expanded + r * piece);
                if (count == panel) {
                    tiles<panel>(expanded, x + c, columns, n, tokens, y + first, rows);
                } else {
                    for (std::size_t r = 0; r < count; ++r)
                        tiles<1>(expanded + r * piece, x + c, columns, n, tokens, y + first + r, rows);
                }
            }
        }
    });
}

} // namespace engine
