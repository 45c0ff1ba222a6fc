// A layer of a model with random weights, fed a random text: keys and queries with rotary positions, logits of any
// spread, perhaps an attention sink.
//
// Trained models are not isotropic: some dimensions of keys are long, and queries are short in these. Here the length of
// a rotated pair of dimensions is lognormal for keys, and its inverse for queries, so that no dimension has more of the
// logits than another. A unit's keys then spread widely where its logits do not.
//
// Shapes: q (T, G, D), k and v (T, D): one KV head. Equal configs give equal numbers.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/views.hpp>

#include "support/oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvtl_test {

struct random_layer_config {
    std::uint32_t dim = 64, group = 2;
    std::size_t tokens = 320;
    double deviation = 1;  ///< standard deviation of a query's logits, the mean over queries
    double anisotropy = 1; ///< standard deviation of the logarithm of a pair's length
    bool sink = false;     ///< the first key has the direction of the mean query, and a short value
    std::uint64_t seed = 1;
};

class random_layer {
  public:
    explicit random_layer(const random_layer_config& config)
        : c_(config), random_(config.seed), q_(c_.tokens * query_floats()), k_(c_.tokens * c_.dim),
          v_(k_.size()) {
        const std::vector<double> text = states();
        std::vector<double> length(c_.dim, 1.0);
        for (std::size_t d = 0; d < c_.dim / 2; ++d)
            length[d] = length[d + c_.dim / 2] = std::exp(c_.anisotropy * random_.normal());
        project(text, k_.data(), c_.dim, [&](std::size_t d) { return length[d]; });
        project(text, v_.data(), c_.dim, [](std::size_t) { return 1.0; });
        for (std::uint32_t g = 0; g < c_.group; ++g)
            project(text, &q_[g * c_.dim], query_floats(), [&](std::size_t d) { return 1 / length[d]; });
        for (std::size_t t = 0; t < c_.tokens; ++t) {
            rotate(&k_[t * c_.dim], t);
            for (std::uint32_t g = 0; g < c_.group; ++g) rotate(query(t, g), t);
        }
        scale_queries();
        if (c_.sink) make_sink();
    }

    [[nodiscard]] std::size_t tokens() const { return c_.tokens; }
    [[nodiscard]] std::size_t query_floats() const { return std::size_t{c_.group} * c_.dim; }
    [[nodiscard]] kvtl::shape shape() const { return {1, c_.group, 1, c_.dim}; }
    [[nodiscard]] kvtl::layer_input input(std::size_t first, std::size_t count = 1) const {
        kvtl::layer_input in;
        in.q = std::span(q_).subspan(first * query_floats(), count * query_floats());
        in.k = std::span(k_).subspan(first * c_.dim, count * c_.dim);
        in.v = std::span(v_).subspan(first * c_.dim, count * c_.dim);
        return in;
    }

    /// Attention of token t over tokens 0 to t, keys and values rounded to f16. Returns (G, D).
    [[nodiscard]] std::vector<double> dense(std::size_t t) const {
        std::vector<double> out(query_floats()), weight(t + 1);
        for (std::uint32_t g = 0; g < c_.group; ++g) {
            for (std::size_t i = 0; i <= t; ++i) weight[i] = logit(t, g, i);
            const double largest = *std::max_element(weight.begin(), weight.end());
            double sum = 0;
            for (double& w : weight) w = std::exp(w - largest), sum += w;
            for (std::size_t i = 0; i <= t; ++i)
                for (std::size_t d = 0; d < c_.dim; ++d)
                    out[g * c_.dim + d] += weight[i] / sum * rounded(v_[i * c_.dim + d]);
        }
        return out;
    }

  private:
    static constexpr std::size_t hidden = 64, vocabulary = 96;

    /// (T, hidden): the vector of each token's word, and of those before it, fading.
    [[nodiscard]] std::vector<double> states() {
        std::vector<double> word(vocabulary * hidden), past(hidden), out(c_.tokens * hidden);
        for (double& x : word) x = random_.normal();
        for (std::size_t t = 0; t < c_.tokens; ++t) {
            const auto chosen = static_cast<std::size_t>(vocabulary * random_.uniform() * random_.uniform());
            for (std::size_t j = 0; j < hidden; ++j) {
                const double x = word[chosen * hidden + j];
                past[j] = 0.9 * past[j] + 0.4 * x;
                out[t * hidden + j] = 0.8 * x + 0.6 * past[j];
            }
        }
        return out;
    }
    /// Row t of `to`, `stride` apart, becomes a random matrix, its rows scaled, times the token's state.
    template <class Scale>
    void project(const std::vector<double>& text, float* to, std::size_t stride, const Scale& scale) {
        std::vector<double> matrix(c_.dim * hidden);
        for (double& x : matrix) x = random_.normal();
        for (std::size_t t = 0; t < c_.tokens; ++t)
            for (std::size_t d = 0; d < c_.dim; ++d) {
                double sum = 0;
                for (std::size_t j = 0; j < hidden; ++j) sum += matrix[d * hidden + j] * text[t * hidden + j];
                to[t * stride + d] = static_cast<float>(scale(d) * sum / 8);
            }
    }
    /// Rotary positions: dimensions d and d + D/2 turn by t / 10000^(2 d / D).
    void rotate(float* row, std::size_t t) const {
        const std::size_t half = c_.dim / 2;
        for (std::size_t d = 0; d < half; ++d) {
            const double angle =
                static_cast<double>(t) * std::pow(1e4, -2.0 * static_cast<double>(d) / c_.dim);
            const double x = static_cast<double>(row[d]), y = static_cast<double>(row[d + half]);
            row[d] = static_cast<float>(std::cos(angle) * x - std::sin(angle) * y);
            row[d + half] = static_cast<float>(std::sin(angle) * x + std::cos(angle) * y);
        }
    }
    void scale_queries() {
        double deviations = 0;
        std::size_t queries = 0;
        for (std::size_t t = c_.tokens / 2; t < c_.tokens; t += 16)
            for (std::uint32_t g = 0; g < c_.group; ++g, ++queries) {
                double sum = 0, squares = 0;
                const auto n = static_cast<double>(t);
                for (std::size_t i = 0; i < t; ++i) {
                    const double x = logit(t, g, i);
                    sum += x / n, squares += x * x / n;
                }
                deviations += std::sqrt(squares - sum * sum);
            }
        const double factor = c_.deviation * static_cast<double>(queries) / deviations;
        for (float& x : q_) x = static_cast<float>(factor * static_cast<double>(x));
    }
    /// Twice as long as other keys.
    void make_sink() {
        std::vector<double> mean(c_.dim);
        double squares = 0, length = 0;
        for (std::size_t t = 0; t < c_.tokens; ++t)
            for (std::size_t d = 0; d < c_.dim; ++d) {
                for (std::uint32_t g = 0; g < c_.group; ++g)
                    mean[d] += static_cast<double>(q_[t * query_floats() + g * c_.dim + d]);
                squares +=
                    std::pow(static_cast<double>(k_[t * c_.dim + d]), 2) / static_cast<double>(c_.tokens);
            }
        for (const double x : mean) length += x * x;
        for (std::size_t d = 0; d < c_.dim; ++d) {
            k_[d] = static_cast<float>(2 * mean[d] * std::sqrt(squares / length));
            v_[d] *= 0.1F;
        }
    }
    [[nodiscard]] double logit(std::size_t t, std::uint32_t g, std::size_t key) const {
        double sum = 0;
        for (std::size_t d = 0; d < c_.dim; ++d)
            sum +=
                static_cast<double>(q_[t * query_floats() + g * c_.dim + d]) * rounded(k_[key * c_.dim + d]);
        return sum / std::sqrt(static_cast<double>(c_.dim));
    }
    [[nodiscard]] static double rounded(float x) {
        return static_cast<double>(kvtl::to_float(kvtl::from_float<kvtl::f16>(x)));
    }
    [[nodiscard]] float* query(std::size_t t, std::uint32_t g) {
        return &q_[t * query_floats() + g * c_.dim];
    }

    random_layer_config c_;
    oracle::generator random_;
    std::vector<float> q_, k_, v_;
};

} // namespace kvtl_test
