// Fits gates of the `locret` preset to recorded texts without training a network: one linear gate per layer and KV head
// that guesses, from a token's own q, k and v, how much attention its entry will get later.
//
//   auto fit = gate_fit::make(model);
//   if (auto s = fit->add(layer, {.q = q, .k = k, .v = v}); !s) ...   // for every text and layer, the whole text at once
//   auto gates = fit->finish();
//   if (auto s = gates->write("model.gates"); !s) ...
//
// Target: log(m + 0.001), m = mean over the later observers i of p_i(t) * (i + 1), p averaged over the group: 1 is what
//         even attention would give. An observer is every `stride`-th query; it counts for tokens that are `distance` or
//         more behind it, because the preset keeps nearer ones anyway.
// Fit:    least squares with a ridge of a thousandth of the mean square of an input; sums of outer products in double
//         precision, texts are not kept.
// Cost:   per text of T tokens and layer T^2 / (2 stride) dot products per query head, and T N^2 / 2 for N inputs; a layer
//         takes N^2 doubles.
// Source: Locret (its gate has a hidden layer and is trained); the target is this library's own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/fit/dense_algebra.hpp>
#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace kvtl { inline namespace v0 {

struct gate_fit_options {
    std::size_t stride = 8;
    std::size_t distance = 100; ///< the preset's window
    std::size_t least = 8;      ///< observers that a token must have
};

struct fitted_gates {
    gate_header header;
    std::vector<float> weights;    ///< in the layout of the header
    std::vector<double> explained; ///< (L) share of the targets' variance, mean over KV heads

    [[nodiscard]] status write(const std::string& path) const { return write_gates(path, header, weights); }
};

class gate_fit {
  public:
    [[nodiscard]] static result<gate_fit> make(const shape& model, const gate_fit_options& options = {}) {
        if (auto good = geometry::from(model); !good) return good.error();
        if (options.stride == 0)
            return status::failure(errc::invalid_argument, "stride is 0; valid: 1 or more");
        return gate_fit(model, options);
    }

    /// q (T, HQ, D), k and v (T, H, D), of one text in one layer.
    [[nodiscard]] status add(std::uint32_t layer, const layer_input& in) {
        const std::size_t q_row = std::size_t{shape_.query_heads} * shape_.head_dim,
                          kv = std::size_t{shape_.kv_heads} * shape_.head_dim, tokens = in.k.size() / kv;
        std::vector<float> query_room, key_room, value_room;
        const std::span<const float> q = dense::as_floats(in.q, query_room),
                                     k = dense::as_floats(in.k, key_room),
                                     v = dense::as_floats(in.v, value_room);
        if (layer >= shape_.layers)
            return status::failure(errc::invalid_argument, "gates: layer %u; valid: 0 to %u", layer,
                                   shape_.layers - 1);
        if (tokens == 0 || k.size() != tokens * kv || v.size() != tokens * kv || q.size() != tokens * q_row)
            return status::failure(
                errc::invalid_argument,
                "gates: layer %u: q, k and v have %zu, %zu and %zu floats; valid: %zu, %zu and %zu per token",
                layer, q.size(), k.size(), v.size(), q_row, kv, kv);
        for (const auto& x : {q, k, v})
            if (!simd::all_finite(x.data(), x.size()))
                return status::failure(errc::invalid_argument, "gates: layer %u: a number is not finite",
                                       layer);

        sums& to = layers_[layer];
        std::vector<received> heads;
        for (std::size_t h = 0; h < shape_.kv_heads; ++h)
            heads.push_back(attention_received(q, k, tokens, h));
        // Later tokens have fewer observers: those with enough are the first ones.
        std::size_t samples = 0;
        while (samples < tokens && heads[0].observers[samples] >= options_.least) ++samples;
        const std::size_t inputs = q_row + 2 * kv, row = inputs + 1;
        std::vector<float> x;
        x.reserve(samples * row);
        to.xx.resize(row * row);
        to.xy.resize(heads.size() * row);
        to.yy.resize(heads.size());
        for (std::size_t t = 0; t < samples; ++t) {
            for (const auto part :
                 {q.subspan(t * q_row, q_row), k.subspan(t * kv, kv), v.subspan(t * kv, kv)})
                x.insert(x.end(), part.begin(), part.end());
            x.push_back(1);
            for (std::size_t h = 0; h < heads.size(); ++h) {
                const double y =
                    std::log(heads[h].mass[t] / static_cast<double>(heads[h].observers[t]) + 1e-3);
                for (std::size_t i = 0; i < row; ++i)
                    to.xy[h * row + i] += y * static_cast<double>(x[t * row + i]);
                to.yy[h] += y * y;
            }
        }
        dense::add_outer_products({x.data(), samples, row, row}, to.xx);
        to.samples += samples;
        return {};
    }

    /// Fails when a layer has fewer samples than inputs.
    [[nodiscard]] result<fitted_gates> finish() const {
        fitted_gates g;
        g.header.layers = shape_.layers;
        g.header.kv_heads = shape_.kv_heads;
        g.header.inputs = (shape_.query_heads + 2 * shape_.kv_heads) * shape_.head_dim;
        const std::size_t inputs = g.header.inputs, row = inputs + 1;
        for (std::size_t l = 0; l < layers_.size(); ++l) {
            const sums& s = layers_[l];
            if (s.samples <= inputs)
                return status::failure(
                    errc::invalid_argument,
                    "the text is too short to fit gates of %zu inputs: layer %zu has %llu tokens that are "
                    "seen again",
                    inputs, l, static_cast<unsigned long long>(s.samples));
            std::vector<double> a = s.xx;
            double trace = 0;
            for (std::size_t i = 0; i < inputs; ++i) trace += a[i * row + i];
            const double ridge = 1e-3 * trace / static_cast<double>(inputs);
            for (std::size_t i = 0; i < inputs; ++i) a[i * row + i] += ridge; // not of the constant
            const std::vector<double> w = dense::solve_rows({a.data(), row, row, row}, s.xy);
            double explained = 0;
            for (std::size_t h = 0; h < shape_.kv_heads; ++h) {
                // |y - w x|^2 summed = |y|^2 - 2 w.xy + w xx w, and w (xx + ridge) = xy.
                const double *wh = &w[h * row], *xy = &s.xy[h * row];
                double error = s.yy[h];
                for (std::size_t i = 0; i < row; ++i)
                    error -= wh[i] * (xy[i] + (i < inputs ? ridge * wh[i] : 0));
                const double mean = xy[inputs] / static_cast<double>(s.samples);
                const double variance = s.yy[h] - static_cast<double>(s.samples) * mean * mean;
                explained += variance > 0 ? 1 - error / variance : 0;
            }
            g.explained.push_back(explained / shape_.kv_heads);
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                for (std::size_t i = 0; i < inputs; ++i)
                    g.weights.push_back(static_cast<float>(w[h * row + i]));
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                g.weights.push_back(static_cast<float>(w[h * row + inputs]));
        }
        return g;
    }

  private:
    struct sums {
        std::vector<double> xx; ///< (N + 1, N + 1), the last input is 1; upper half
        std::vector<double> xy; ///< (H, N + 1)
        std::vector<double> yy; ///< (H)
        std::uint64_t samples = 0;
    };
    /// What the entries of a KV head get from later observers, by token.
    struct received {
        std::vector<double> mass; ///< sums of p * (i + 1)
        std::vector<std::size_t> observers;
    };

    gate_fit(const shape& model, const gate_fit_options& options)
        : shape_(model), options_(options), layers_(model.layers) {}

    [[nodiscard]] received attention_received(std::span<const float> queries, std::span<const float> keys,
                                              std::size_t tokens, std::size_t h) const {
        const std::size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
        const double scale = 1 / std::sqrt(static_cast<double>(dim));
        received r{std::vector<double>(tokens), std::vector<std::size_t>(tokens)};
        std::vector<double> p(tokens);
        for (std::size_t i = options_.distance; i < tokens; i += options_.stride) {
            for (std::size_t g = 0; g < group; ++g) {
                const float* q = &queries[(i * shape_.query_heads + h * group + g) * dim];
                double top = -1e300, sum = 0;
                for (std::size_t t = 0; t <= i; ++t) {
                    const float* k = &keys[(t * shape_.kv_heads + h) * dim];
                    p[t] = scale * static_cast<double>(simd::dot(q, k, dim));
                    top = std::max(top, p[t]);
                }
                for (std::size_t t = 0; t <= i; ++t) sum += p[t] = std::exp(p[t] - top);
                const double share = static_cast<double>(i + 1) / (sum * static_cast<double>(group));
                for (std::size_t t = 0; t + options_.distance <= i; ++t) r.mass[t] += share * p[t];
            }
            for (std::size_t t = 0; t + options_.distance <= i; ++t) ++r.observers[t];
        }
        return r;
    }

    kvtl::shape shape_;
    gate_fit_options options_;
    std::vector<sums> layers_;
};

}} // namespace kvtl::v0
