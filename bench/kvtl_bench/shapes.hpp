// The attention shapes of models whose KV cache the bench imitates, as their config files have them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct model_shape {
    std::string_view name;
    kvtl::shape shape; ///< L, HQ, H, D
    double rope_base;
};

inline constexpr std::array model_shapes = {
    model_shape{"llama3-8b", {32, 32, 8, 128}, 500'000},
    model_shape{"llama3.2-1b", {16, 32, 8, 64}, 500'000},
    model_shape{"llama3.2-3b", {28, 24, 8, 128}, 500'000},
    model_shape{"qwen2.5-1.5b", {28, 12, 2, 128}, 1'000'000},
    model_shape{"qwen2.5-3b", {36, 16, 2, 128}, 1'000'000},
    model_shape{"qwen2.5-14b", {48, 40, 8, 128}, 1'000'000},
    model_shape{"mistral-7b", {32, 32, 8, 128}, 1'000'000},
    model_shape{"tiny-2k", {6, 4, 2, 64}, 10'000},
};

/// How keys are turned to their positions: radians per position of each pair of channels.
struct rotation {
    std::vector<double> frequencies;
    bool neighbours = false; ///< pairs are (0, 1), (2, 3), ... instead of (0, n), (1, n + 1), ...
};
/// All channels of a head, base^(-2 i / D).
[[nodiscard]] inline rotation rope(std::uint32_t dim, double base, bool neighbours) {
    rotation r{std::vector<double>(dim / 2), neighbours};
    for (std::size_t i = 0; i < r.frequencies.size(); ++i)
        r.frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / dim);
    return r;
}

/// Null when there is no such model.
[[nodiscard]] constexpr const model_shape* find_shape(std::string_view name) noexcept {
    for (const model_shape& m : model_shapes)
        if (m.name == name) return &m;
    return nullptr;
}

inline constexpr auto shape_names = [] {
    std::array<std::string_view, model_shapes.size()> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = model_shapes[i].name;
    return names;
}();

/// "llama3-8b, llama3.2-1b, ..."
[[nodiscard]] inline std::string list_shapes() {
    std::string list;
    for (const std::string_view name : shape_names) list += (list.empty() ? "" : ", ") + std::string(name);
    return list;
}

} // namespace bench
