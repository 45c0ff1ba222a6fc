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

/// Policies that keep records of sizes of their own in memory, which take what memory leaves.
[[nodiscard]] inline bool keeps_ragged_records(std::string_view policy) {
    for (const char* p :
         {"dynakv_lr_energy", "dynakv_lr", "snapkv_layer_then_lr_energy", "snapkv_layer_then_dynakv_lr"})
        if (policy == p) return true;
    return false;
}
/// The least memory with which all tokens fit. That is the least that open() accepts: its error says so. Where open() promises
/// no room for records, twice as many 16-bit entries come on top: one for the records, one for chunks that wait for the last.
/// `otherwise`: for presets that are exempt from the bound.
[[nodiscard]] inline std::size_t least_bytes(engine::cache_options o, std::size_t otherwise) {
    o.memory_bytes = 1;
    const auto refused = engine::open_cache(o);
    if (refused.ok()) return otherwise;
    const std::string& text = refused.error().message;
    const std::string before = "needs at least ";
    REQUIRE_MESSAGE(text.find(before) != std::string::npos, text);
    const std::size_t bytes = std::stoull(text.substr(text.find(before) + before.size()));
    if (!keeps_ragged_records(o.policy)) return bytes;
    return 2 * (bytes +
                o.max_tokens * o.max_sequences * o.shape.layers * o.shape.kv_heads * o.shape.head_dim * 4);
}

[[nodiscard]] inline gate_form gate_inputs_of(std::string_view policy, const kvtl::shape& m) {
    return gate_inputs(engine::policy_wants(policy), m, std::size_t{m.query_heads} * m.head_dim);
}

/// Chunks that wait for a prompt's last one take what memory leaves: the least holds a prompt in one chunk where what
/// retention keeps moves to storage, and where rows are so small that what it leaves holds no plain ones.
[[nodiscard]] inline std::size_t chunk_of(std::string_view policy, std::size_t chunk, bool smallest) {
    const engine::cache_wants wants = engine::policy_wants(policy);
    return smallest && wants.evicts && (wants.retrieves || policy.ends_with("_int4")) ? SIZE_MAX : chunk;
}

} // namespace kvtl_test
