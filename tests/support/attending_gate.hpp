// Gates that attend earlier tokens (kvtl::activation::attention), by definition and in double precision.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace kvtl_test {

/// The number of each token by definition of gates that attend: x (T, N). What later tokens read of one has 16 bits.
inline std::vector<double> attending(const kvtl::gate_header& h, const std::vector<float>& weights,
                                     std::size_t layer, std::size_t head, std::span<const float> x) {
    const std::size_t n = h.inputs, w = h.hidden, heads = h.kv_heads, tokens = x.size() / n;
    const float* const wq = weights.data() + layer * h.layer_floats();
    const float *const wk = wq + heads * w * n, *const wv = wk + heads * w * n, *const own = wv + heads * n;
    const auto product = [&](const float* of, std::size_t t) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i)
            sum += static_cast<double>(of[i]) * static_cast<double>(x[t * n + i]);
        return sum;
    };
    const auto rounded = [](double v) {
        return static_cast<double>(kvtl::to_float(kvtl::from_float<kvtl::f16>(static_cast<float>(v))));
    };
    std::vector<double> out(tokens);
    std::vector<double> keys(tokens * w), values(tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
        for (std::size_t i = 0; i < w; ++i) keys[t * w + i] = rounded(product(wk + (head * w + i) * n, t));
        values[t] = rounded(product(wv + head * n, t));
        double above = 0, below = 0;
        for (std::size_t j = 0; j <= t; ++j) {
            double s = 0;
            for (std::size_t i = 0; i < w; ++i) s += product(wq + (head * w + i) * n, t) * keys[j * w + i];
            const double p = std::exp(s / std::sqrt(static_cast<double>(w)));
            above += p * values[j], below += p;
        }
        out[t] = product(own + head * n, t) + above / below + static_cast<double>(own[heads * n + head]);
    }
    return out;
}

} // namespace kvtl_test
