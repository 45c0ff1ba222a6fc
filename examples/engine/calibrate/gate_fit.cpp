// SPDX-License-Identifier: MIT
#include "gate_fit.hpp"

#include <kvtl/simd/dot.hpp>

#include "error.hpp"

#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <string>

namespace engine {

namespace {

using matrix = Eigen::MatrixXd;
using vector = Eigen::VectorXd;

/// What the entries of KV head h get from later observers, by token: (sum of p * (i + 1), observers).
struct received {
    std::vector<double> mass;
    std::vector<std::size_t> observers;
};

received attention_received(const kvtl::shape& s, const gate_fit_options& o, const kvtl::layer_input& in,
                            std::size_t tokens, std::size_t h) {
    const std::size_t dim = s.head_dim, group = s.query_heads / s.kv_heads;
    const double scale = 1 / std::sqrt(static_cast<double>(dim));
    received r{std::vector<double>(tokens), std::vector<std::size_t>(tokens)};
    std::vector<double> p(tokens);
    for (std::size_t i = o.distance; i < tokens; i += o.stride) {
        for (std::size_t g = 0; g < group; ++g) {
            const float* q = in.q.data() + (i * s.query_heads + h * group + g) * dim;
            for (std::size_t t = 0; t <= i; ++t)
                p[t] = scale * static_cast<double>(kvtl::simd::dot(
                                   q, in.k.floats().data() + (t * s.kv_heads + h) * dim, dim));
            const double top = *std::max_element(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(i + 1));
            double sum = 0;
            for (std::size_t t = 0; t <= i; ++t) sum += p[t] = std::exp(p[t] - top);
            const double share = static_cast<double>(i + 1) / (sum * static_cast<double>(group));
            for (std::size_t t = 0; t + o.distance <= i; ++t) r.mass[t] += share * p[t];
        }
        for (std::size_t t = 0; t + o.distance <= i; ++t) ++r.observers[t];
    }
    return r;
}

} // namespace

struct gate_fit::sums {
    matrix xx; ///< (N + 1, N + 1), the last input is 1; lower half
    matrix xy; ///< (N + 1, H)
    vector yy; ///< (H)
    double samples = 0;
};

gate_fit::gate_fit(const kvtl::shape& shape, const gate_fit_options& options)
    : shape_(shape), options_(options) {
    const auto inputs =
        static_cast<Eigen::Index>((shape.query_heads + 2 * shape.kv_heads) * shape.head_dim + 1);
    const auto heads = static_cast<Eigen::Index>(shape.kv_heads);
    for (std::uint32_t l = 0; l < shape.layers; ++l)
        layers_.push_back(std::make_unique<sums>(sums{.xx = matrix::Zero(inputs, inputs),
                                                      .xy = matrix::Zero(inputs, heads),
                                                      .yy = vector::Zero(heads)}));
}

gate_fit::~gate_fit() = default;

void gate_fit::add(std::uint32_t layer, const kvtl::layer_input& in) {
    sums& to = *layers_[layer];
    const std::size_t q = std::size_t{shape_.query_heads} * shape_.head_dim,
                      kv = std::size_t{shape_.kv_heads} * shape_.head_dim, tokens = in.k.size() / kv;
    std::vector<received> heads;
    for (std::size_t h = 0; h < shape_.kv_heads; ++h)
        heads.push_back(attention_received(shape_, options_, in, tokens, h));
    // Later tokens have fewer observers: those with enough are the first ones.
    std::size_t samples = 0;
    while (samples < tokens && heads[0].observers[samples] >= options_.least) ++samples;
    const auto n = static_cast<Eigen::Index>(samples);
    matrix x(n, to.xx.cols()), y(n, to.xy.cols());
    for (Eigen::Index t = 0; t < n; ++t) {
        const auto at = static_cast<std::size_t>(t);
        Eigen::Index column = 0;
        for (const auto row : {in.q.subspan(at * q, q), in.k.floats().subspan(at * kv, kv),
                               in.v.floats().subspan(at * kv, kv)})
            for (const float number : row) x(t, column++) = static_cast<double>(number);
        x(t, column) = 1;
        for (std::size_t h = 0; h < heads.size(); ++h)
            y(t, static_cast<Eigen::Index>(h)) =
                std::log(heads[h].mass[at] / static_cast<double>(heads[h].observers[at]) + 1e-3);
    }
    to.xx.selfadjointView<Eigen::Lower>().rankUpdate(x.transpose());
    to.xy += x.transpose() * y;
    to.yy += y.colwise().squaredNorm().transpose();
    to.samples += static_cast<double>(samples);
}

fitted_gates gate_fit::finish() const {
    fitted_gates g;
    g.header.layers = shape_.layers;
    g.header.kv_heads = shape_.kv_heads;
    g.header.inputs = (shape_.query_heads + 2 * shape_.kv_heads) * shape_.head_dim;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
        const sums& s = *layers_[l];
        const Eigen::Index inputs = s.xx.cols() - 1;
        if (s.samples <= static_cast<double>(inputs))
            throw bad_input("the text is too short to fit gates of " + std::to_string(inputs) +
                            " inputs: layer " + std::to_string(l) + " has " +
                            std::to_string(static_cast<std::size_t>(s.samples)) +
                            " tokens that are seen again");
        matrix a = s.xx.selfadjointView<Eigen::Lower>();
        const double ridge = 1e-3 * a.diagonal().head(inputs).mean();
        a.diagonal().head(inputs).array() += ridge; // not of the constant
        const matrix w = a.ldlt().solve(s.xy);
        double explained = 0;
        for (Eigen::Index h = 0; h < w.cols(); ++h) {
            const vector wh = w.col(h), xy = s.xy.col(h);
            const double mean = xy(inputs) / s.samples;
            const double variance = s.yy(h) - s.samples * mean * mean;
            const double error = s.yy(h) - 2 * wh.dot(xy) + wh.dot(s.xx.selfadjointView<Eigen::Lower>() * wh);
            explained += variance > 0 ? 1 - error / variance : 0;
        }
        g.explained.push_back(explained / static_cast<double>(w.cols()));
        for (Eigen::Index h = 0; h < w.cols(); ++h)
            for (Eigen::Index i = 0; i < inputs; ++i) g.weights.push_back(static_cast<float>(w(i, h)));
        for (Eigen::Index h = 0; h < w.cols(); ++h) g.weights.push_back(static_cast<float>(w(inputs, h)));
    }
    return g;
}

} // namespace engine
