// Fits gates of the `locret` preset to a recorded text without training a network: one linear gate per layer
// and KV head that guesses, from a token's own q, k and v, how much attention its entry will get later.
//
//   gate_fit fit(shape);
//   fit.add(layer, in);                        // for every text and layer, the whole text at once
//   const fitted_gates g = fit.finish();
//   write_gates("model.gates", g.header, g.weights);
//
// Target: log(m + 0.001), m = mean over the later observers i of p_i(t) * (i + 1), p averaged over the group:
// 1 is
//         what even attention would give. An observer is every `stride`-th query; it counts for tokens that
//         are `distance` or more behind it, because the preset keeps nearer ones anyway.
// Fit:    least squares with a ridge of a thousandth of the mean square of an input; sums of outer products
// in
//         double precision, texts are not kept.
// Cost:   per text of T tokens and layer T^2 / (2 stride) dot products per query head, and T N^2 for N
// inputs. Source: Locret (its gate has a hidden layer and is trained); the target is this library's own.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>
#include <kvtl/geometry.hpp>
#include <kvtl/views.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace engine {

struct gate_fit_options {
    std::size_t stride = 8;
    std::size_t distance = 100; ///< the preset's window
    std::size_t least = 8;      ///< observers that a token must have
};

struct fitted_gates {
    kvtl::gate_header header;
    std::vector<float> weights;    ///< in the layout of the header
    std::vector<double> explained; ///< (L) share of the targets' variance, mean over KV heads
};

class gate_fit {
  public:
    explicit gate_fit(const kvtl::shape& shape, const gate_fit_options& options = {});
    ~gate_fit();

    /// q (T, HQ, D), k and v (T, H, D) of one text in one layer.
    void add(std::uint32_t layer, const kvtl::layer_input& in);

    /// Throws bad_input when a layer has fewer samples than inputs.
    [[nodiscard]] fitted_gates finish() const;

  private:
    struct sums;
    kvtl::shape shape_;
    gate_fit_options options_;
    std::vector<std::unique_ptr<sums>> layers_;
};

} // namespace engine
