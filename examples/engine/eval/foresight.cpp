// SPDX-License-Identifier: MIT
#include "foresight.hpp"

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/softmax.hpp>

#include <algorithm>
#include <cmath>

namespace eval {

std::vector<float> later_attention(const layer_recording& r, const kvtl::shape& shape, std::size_t prefilled,
                                   std::size_t decoded) {
    constexpr std::size_t reach = 5; // neighbours on either side
    const std::size_t dim = shape.head_dim, heads = shape.kv_heads, group = shape.query_heads / heads;
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    std::vector<float> out(prefilled * heads), p, sum(prefilled);
    for (std::size_t h = 0; h < heads; ++h) {
        std::fill(sum.begin(), sum.end(), 0.0F);
        for (std::size_t i = prefilled - 1; i < prefilled + decoded; ++i)
            for (std::size_t g = 0; g < group; ++g) {
                const float* q = r.q.data() + (i * shape.query_heads + h * group + g) * dim;
                p.resize(i + 1);
                for (std::size_t t = 0; t <= i; ++t)
                    p[t] = kvtl::simd::dot(q, r.k.data() + (t * heads + h) * dim, dim);
                const float all = kvtl::simd::exp_shifted_sum(p.data(), p.size(),
                                                              kvtl::simd::max_of(p.data(), p.size()), scale);
                kvtl::simd::axpy(1.0F / all, p.data(), sum.data(), prefilled);
            }
        const float even = static_cast<float>((decoded + 1) * group) / static_cast<float>(prefilled);
        for (std::size_t t = 0; t < prefilled; ++t) {
            const auto first = sum.begin() + static_cast<std::ptrdiff_t>(t - std::min(t, reach)),
                       last = sum.begin() + static_cast<std::ptrdiff_t>(std::min(t + reach + 1, prefilled));
            const float share = *std::max_element(first, last) / even;
            out[t * heads + h] = share < 1 ? 0 : share;
        }
    }
    return out;
}

} // namespace eval
