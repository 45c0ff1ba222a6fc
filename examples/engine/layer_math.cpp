// SPDX-License-Identifier: MIT
#include "layer_math.hpp"

#include <cmath>

namespace engine {

void rms_norm(const float* x, std::span<const float> weight, float epsilon, float* y) noexcept {
    double sum = 0;
    for (std::size_t i = 0; i < weight.size(); ++i)
        sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double mean = sum / static_cast<double>(weight.size());
    const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(epsilon)));
    for (std::size_t i = 0; i < weight.size(); ++i) y[i] = x[i] * scale * weight[i];
}

void rope_angles(std::span<const double> frequencies, double position, float* cosine, float* sine) noexcept {
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = position * frequencies[i];
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(std::sin(angle));
    }
}

void rotate_head(float* head, const float* cosine, const float* sine, std::size_t pairs,
                 bool neighbours) noexcept {
    const std::size_t step = neighbours ? 2 : 1, apart = neighbours ? 1 : pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
        float& a = head[i * step];
        float& b = head[i * step + apart];
        const float turned = a * cosine[i] - b * sine[i];
        b = a * sine[i] + b * cosine[i];
        a = turned;
    }
}

} // namespace engine
