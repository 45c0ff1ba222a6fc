// Sums of table entries: what product codes score with.
//
// Shapes: table (m, C) f32, code (n, m) bytes below C with `stride` from code to code, out (n).
// Cost:   m loads of a byte and m of a float per code. Four codes run side by side to hide the latency of
//         their loads.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/arch.hpp>
#include <kvtl/simd/unroll.hpp>

namespace kvtl { inline namespace v0 { namespace simd {

/// out[i] = sum over s < m of table[s * columns + code[i * stride + s]]
template <class Arch = default_arch>
inline void sum_lookups(const float* table, std::size_t columns, std::size_t m, const std::uint8_t* code,
                        std::size_t stride, std::size_t n, float* out) noexcept {
    constexpr std::size_t side = 4;
    std::size_t i = 0;
    for (; i + side <= n; i += side, code += side * stride) {
        float sum[side] = {};
        for (std::size_t s = 0; s < m; ++s)
            unrolled<side>([&](auto j) { sum[j] += table[s * columns + code[j * stride + s]]; });
        unrolled<side>([&](auto j) { out[i + j] = sum[j]; });
    }
    for (; i < n; ++i, code += stride) {
        float sum = 0;
        for (std::size_t s = 0; s < m; ++s) sum += table[s * columns + code[s]];
        out[i] = sum;
    }
}

}}} // namespace kvtl::v0::simd
