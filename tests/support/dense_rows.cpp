// Attention by definition. SPDX-License-Identifier: MIT
#include "support/dense_rows.hpp"

#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>

namespace kvtl_test {

std::vector<double> dense_rows(const dense_rule& rule, std::size_t t, const float* q, const float* keys,
                               const float* values) {
    const std::size_t heads = rule.shape.query_heads, dim = rule.shape.head_dim,
                      group = heads / rule.shape.kv_heads, width = rule.shape.kv_heads * dim;
    const double scale = rule.scale > 0 ? rule.scale : 1.0 / std::sqrt(static_cast<double>(dim));
    const std::size_t first = rule.reach != 0 && t + 1 > rule.reach ? t + 1 - rule.reach : 0;
    std::vector<double> out(heads * dim, 0.0), weight(t + 1);
    for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t at = h / group * dim;
        for (std::size_t i = first; i <= t; ++i) {
            weight[i] = scale * oracle::dot(q + h * dim, keys + i * width + at, dim);
            if (rule.softcap > 0) weight[i] = rule.softcap * std::tanh(weight[i] / rule.softcap);
        }
        double largest = *std::max_element(weight.begin() + static_cast<std::ptrdiff_t>(first), weight.end());
        if (!rule.sinks.empty()) largest = std::max(largest, static_cast<double>(rule.sinks[h]));
        double sum = rule.sinks.empty() ? 0 : std::exp(static_cast<double>(rule.sinks[h]) - largest);
        double* const o = &out[h * dim];
        for (std::size_t i = first; i <= t; ++i) {
            const double w = std::exp(weight[i] - largest);
            sum += w;
            for (std::size_t d = 0; d < dim; ++d) o[d] += w * static_cast<double>(values[i * width + at + d]);
        }
        for (std::size_t d = 0; d < dim; ++d) o[d] /= sum;
    }
    return out;
}

} // namespace kvtl_test
