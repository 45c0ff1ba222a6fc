// How much a layer's keys change when a prompt is read in blocks that do not see each other: by which EpiCache divides a
// budget among layers.
//
//   key_drift drift(shape);
//   drift.whole(layer, in);                       // of every piece and layer, as the model reads it
//   drift.blocks(layer, in);                      // the same piece in blocks
//   const std::vector<float> importance = drift.finish(power);
//
// What:   of a layer, 1 - cos between a token's keys of all heads in both readings, mean over tokens and pieces, to the
//         power. The first layer's keys do not depend on attention: its drift is 0.
// Source: EpiCache (Kim et al.): key states under block prefill, budgets in proportion to the drift to a power; its
//         code reads windows of 100 tokens.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace engine {

class key_drift {
  public:
    explicit key_drift(const kvtl::shape& shape)
        : floats_(std::size_t{shape.kv_heads} * shape.head_dim), keys_(shape.layers), drift_(shape.layers),
          tokens_(shape.layers) {}

    /// k (T, H, D).
    void whole(std::uint32_t layer, const kvtl::layer_input& in) {
        keys_[layer].assign(in.k.floats().begin(), in.k.floats().end());
    }
    void blocks(std::uint32_t layer, const kvtl::layer_input& in) {
        const auto k = in.k.floats();
        for (std::size_t at = 0; at < k.size(); at += floats_) {
            const float *a = keys_[layer].data() + at, *b = k.data() + at;
            const auto dot = [&](const float* x, const float* y) {
                return static_cast<double>(kvtl::simd::dot(x, y, floats_));
            };
            const double lengths = std::sqrt(dot(a, a) * dot(b, b));
            drift_[layer] += lengths > 0 ? std::max(0.0, 1 - dot(a, b) / lengths) : 0;
            ++tokens_[layer];
        }
    }
    /// (L)
    [[nodiscard]] std::vector<float> finish(double power) const {
        std::vector<float> out;
        for (std::size_t l = 0; l < drift_.size(); ++l)
            out.push_back(static_cast<float>(
                std::pow(drift_[l] / static_cast<double>(std::max<std::size_t>(1, tokens_[l])), power)));
        return out;
    }

  private:
    std::size_t floats_;
    std::vector<std::vector<float>> keys_; ///< (L) of (T, H, D)
    std::vector<double> drift_;            ///< (L) sums
    std::vector<std::size_t> tokens_;
};

} // namespace engine
