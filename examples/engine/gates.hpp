// Files of gate weights: what kvtl/calibration/gate_weights.hpp lays out, as one file. Presets with a learned
// score read them (kvtl/presets/learned.hpp); whoever trains or fits gates writes them.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>

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

/// `weights`: header.layers * header.layer_floats() numbers in the order of the layout.
[[nodiscard]] inline kvtl::status write_gates(const std::string& path, const kvtl::gate_header& header,
                                              std::span<const float> weights) {
    if (weights.size() != header.layers * header.layer_floats())
        return kvtl::status::failure(kvtl::errc::invalid_argument, "gates have %zu weights; valid: %zu",
                                     weights.size(), header.layers * header.layer_floats());
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(&header), sizeof header);
    out.write(reinterpret_cast<const char*>(weights.data()),
              static_cast<std::streamsize>(weights.size_bytes()));
    out.close();
    if (!out) return kvtl::status::failure(kvtl::errc::io_error, "cannot write gates %s", path.c_str());
    return {};
}

} // namespace engine
