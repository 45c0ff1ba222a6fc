// A file of random gate weights, for presets that read one: the numbers mean nothing, the format is right.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/gate_weights.hpp>

#include "kv_cache.hpp"
#include "support/cache_fixture.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace kvtl_test {

/// Numbers per token that gates read, whether they attend earlier tokens, and whether entries leave by what they say alone.
struct gate_form {
    std::size_t inputs = 0;
    bool attends = false, flags = false;
};

class gates_file {
  public:
    /// Gates without hidden units; those that attend have a width of 6. Those that flag keep every entry.
    gates_file(const kvtl::shape& m, const gate_form& form)
        : path_((std::filesystem::temp_directory_path() /
                 ("kvtl-gates-" + std::to_string(::getpid()) + "-" + std::to_string(form.inputs) +
                  (form.attends ? "-attending" : "") + (form.flags ? "-flags" : "")))
                    .string()) {
        kvtl::gate_header header;
        if (form.attends) header.act = kvtl::activation::attention, header.hidden = 6;
        header.layers = m.layers;
        header.kv_heads = m.kv_heads;
        header.inputs = static_cast<std::uint32_t>(form.inputs);
        auto weights = oracle::normal_values(header.layers * header.layer_floats(), 61, 0.1);
        if (form.flags)
            for (std::size_t l = 1; l <= header.layers; ++l)
                std::fill_n(weights.begin() +
                                static_cast<std::ptrdiff_t>(l * header.layer_floats() - m.kv_heads),
                            m.kv_heads, 1000.0F);
        require_ok(kvtl::write_gates(path_, header, weights));
    }
    gates_file(const gates_file&) = delete;
    ~gates_file() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// What a policy's gates read.
[[nodiscard]] inline gate_form gate_inputs(const engine::cache_wants& wants, const kvtl::shape& m,
                                           std::size_t x_floats) {
    return {contains(wants.inputs, kvtl::engine_input::x)
                ? x_floats
                : std::size_t{m.query_heads + 2 * m.kv_heads} * m.head_dim,
            wants.attending_gates, wants.gates_flag};
}

} // namespace kvtl_test
