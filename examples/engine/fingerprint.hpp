// Which model a calibration belongs to.
// SPDX-License-Identifier: MIT
#pragma once

#include "model.hpp"

#include <algorithm>
#include <cstdint>

namespace engine {

/// FNV-1a over what makes the keys and queries: the beginning (64 KiB) of every layer's projections. Never 0,
/// which stands for "any model".
[[nodiscard]] inline std::uint64_t fingerprint_of(const model& m) {
    std::uint64_t hash = 0xCBF29CE484222325U;
    const auto eat = [&hash](const tensor& t) {
        const std::uint64_t bytes = std::min<std::uint64_t>(*bytes_of(t.type, t.columns) * t.rows, 1U << 16);
        for (std::uint64_t i = 0; i < bytes; ++i)
            hash = (hash ^ std::to_integer<std::uint64_t>(t.data[i])) * 0x100000001B3U;
    };
    for (std::uint32_t l = 0; l < m.hyper().shape.layers; ++l) {
        eat(m.layer(l).q);
        eat(m.layer(l).k);
    }
    return hash != 0 ? hash : 1;
}

} // namespace engine
