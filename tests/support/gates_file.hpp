// A file of random gate weights, for presets that read one: the numbers mean nothing, the format is right.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>

#include "kv_cache.hpp"
#include "support/cache_fixture.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>

namespace kvtl_test {

class gates_file {
  public:
    /// Gates of `inputs` numbers per token, without hidden units.
    gates_file(const kvtl::shape& m, std::size_t inputs)
        : path_((std::filesystem::temp_directory_path() /
                 ("kvtl-gates-" + std::to_string(::getpid()) + "-" + std::to_string(inputs)))
                    .string()) {
        kvtl::gate_header header;
        header.layers = m.layers;
        header.kv_heads = m.kv_heads;
        header.inputs = static_cast<std::uint32_t>(inputs);
        const auto weights = oracle::normal_values(header.layers * header.layer_floats(), 61, 0.1);
        require_ok(kvtl::write_gates(path_, header, weights));
    }
    gates_file(const gates_file&) = delete;
    ~gates_file() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// Numbers per token that a policy's gates read.
[[nodiscard]] inline std::size_t gate_inputs(const engine::cache_wants& wants, const kvtl::shape& m,
                                             std::size_t x_floats) {
    return contains(wants.inputs, kvtl::engine_input::x)
               ? x_floats
               : std::size_t{m.query_heads + 2 * m.kv_heads} * m.head_dim;
}

} // namespace kvtl_test
