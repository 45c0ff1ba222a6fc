// Files of gate weights (kvtl/calibration/gate_weights.hpp), which presets with a learned score read
// (kvtl/presets/learned.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/status.hpp>

#include "input_file.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// All bytes of the file; whether they are a gate is checked by who reads them.
[[nodiscard]] inline kvtl::result<std::vector<std::byte>> read_gates(const std::string& path) {
    const auto text = read_input(path, most_gates_bytes);
    if (!text) return kvtl::error(text.error().code, "--gates: " + text.error().message);
    if (text->empty())
        return kvtl::error(kvtl::errc::invalid_argument, "--gates: cannot read " + path + ": it is empty");
    const auto bytes = std::as_bytes(std::span(*text));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
}

} // namespace engine
