// What tests need to run every preset of the registry: all inputs that a preset may ask for, the least memory, chunk sizes.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "support/gates_file.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvtl_test {

/// Adds what some presets need beside q, k and v: queries serve as the layer's input and as queries of the future, and the
/// mask keeps everything.
class all_signals {
  public:
    /// `queries`: the same as in.q, as floats. The result refers to them and to this object.
    [[nodiscard]] kvtl::layer_input add_to(kvtl::layer_input in, std::span<const float> queries,
                                           std::size_t head_dim) {
        mask_.assign(in.k.size() / head_dim, 1.0F);
        in.x = in.probe = queries;
        in.external = mask_;
        return in;
    }

  private:
    std::vector<float> mask_;
};

/// The least memory that open() accepts: its error says so. `otherwise`: for presets that are exempt from the bound.
[[nodiscard]] inline std::size_t least_bytes(engine::cache_options o, std::size_t otherwise) {
    o.memory_bytes = 1;
    const auto refused = engine::open_cache(o);
    if (refused.ok()) return otherwise;
    const std::string& text = refused.error().message;
    const std::string before = "needs at least ";
    REQUIRE_MESSAGE(text.find(before) != std::string::npos, text);
    return std::stoull(text.substr(text.find(before) + before.size()));
}

[[nodiscard]] inline std::size_t gate_inputs_of(std::string_view policy, const kvtl::shape& m) {
    return gate_inputs(engine::policy_wants(policy), m, std::size_t{m.query_heads} * m.head_dim);
}

/// Chunks that wait for a prompt's last one take what memory leaves: the least holds a prompt in one chunk where what
/// retention keeps moves to storage.
[[nodiscard]] inline std::size_t chunk_of(std::string_view policy, std::size_t chunk, bool smallest) {
    const engine::cache_wants wants = engine::policy_wants(policy);
    return smallest && wants.evicts && wants.retrieves ? SIZE_MAX : chunk;
}

} // namespace kvtl_test
