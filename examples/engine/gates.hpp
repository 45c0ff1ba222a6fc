// Files of gate weights (kvtl/calibration/gate_weights.hpp), which presets with a learned score read
// (kvtl/presets/learned.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// All bytes of the file; whether they are a gate is checked by who reads them.
[[nodiscard]] inline kvtl::result<std::vector<std::byte>> read_gates(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (!in.is_open() || in.bad() || text.empty())
        return kvtl::error(kvtl::errc::invalid_argument, "--gates: cannot read " + path);
    const auto bytes = std::as_bytes(std::span(text));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
}

} // namespace engine
