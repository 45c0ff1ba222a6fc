// Rotary position embeddings as an index needs them: to take a key's rotation off, and to put it on again.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// How a model rotates the keys of a head: plain RoPE, of all channels or of the first `dims`.
struct rope {
    double theta = 10000.0; ///< pair i turns by theta^(-2 i / dims) per position
    std::uint32_t dims = 0; ///< channels that turn, from the first (0: all)
    bool neighbours =
        false; ///< pairs are (0, 1), (2, 3), ... instead of (0, dims / 2), (1, dims / 2 + 1), ...
};

/// The same for one head size. Angles are kept in double: at position 100,000 a float angle is off by 0.004.
class rotation {
  public:
    static constexpr std::uint32_t max_pairs = 256;

    rotation() = default;
    rotation(const rope& r, std::uint32_t dim) noexcept
        : neighbours_(r.neighbours),
          pairs_(std::min({(r.dims == 0 ? dim : std::min(r.dims, dim)) / 2, max_pairs})) {
        for (std::uint32_t i = 0; i < pairs_; ++i)
            frequency_[i] = std::pow(r.theta, -static_cast<double>(i) / pairs_);
    }

    /// x: (heads, dim), turned by `positions` (negative: back), all heads alike.
    void turn(float* x, std::uint32_t heads, std::uint32_t dim, double positions) const noexcept {
        const std::size_t step = neighbours_ ? 2 : 1, apart = neighbours_ ? 1 : pairs_;
        for (std::uint32_t i = 0; i < pairs_; ++i) {
            const double angle = frequency_[i] * positions;
            const auto cosine = static_cast<float>(std::cos(angle)),
                       sine = static_cast<float>(std::sin(angle));
            for (std::uint32_t h = 0; h < heads; ++h) {
                float* a = x + std::size_t{h} * dim + i * step;
                float* b = a + apart;
                const float turned = *a * cosine - *b * sine;
                *b = *b * cosine + *a * sine;
                *a = turned;
            }
        }
    }

  private:
    bool neighbours_ = false;
    std::uint32_t pairs_ = 0;
    std::array<double, max_pairs> frequency_{};
};

}} // namespace kvtl::v0
