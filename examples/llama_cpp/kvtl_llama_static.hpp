// Attachments with a cache whose policies are known at compile time: no registry of presets, no names.
//
//   using cache_t = kvtl::dynakv<kvtl::geometry<kvtl::shape{.head_dim = 64}>>;
//   auto attached = kvtl_llama::attach<cache_t>(params, model, {.max_tokens = 32768},
//                                               {.memory_bytes = 64 << 20, .io = {.path = "kv.bin"}});
// SPDX-License-Identifier: MIT
#pragma once

#include "core_calls.hpp"
#include "kvtl_llama.hpp"
#include "manager_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvtl_llama {

/// The config with what the model's facts and the settings say: shape, lengths, shards, rotation, attention.
template <class Config> [[nodiscard]] Config with_facts(Config c, const model_facts& f, const settings& s) {
    c.shape = f.shape;
    c.max_tokens = s.max_tokens != 0 ? s.max_tokens : f.trained_context;
    c.max_sequences = s.max_sequences;
    c.shards = std::min(s.threads, f.shape.kv_heads);
    c.supplied = s.supplied;
    const auto rotate = [&](auto& policy) {
        if constexpr (requires { policy.frequencies; }) {
            policy.frequencies = f.rope_frequencies;
            policy.dims = static_cast<std::uint32_t>(2 * f.rope_frequencies.size());
            policy.neighbours = f.rope_neighbours;
        }
    };
    rotate(c.position);
    rotate(c.compressor);
    static_cast<void>(detail::set_attention(c, f));
    return c;
}

/// Manager: a kvtl::kv_manager. Of `c`, what with_facts() names is filled in.
template <class Manager>
[[nodiscard]] kvtl::result<attachment> attach(llama_context_params& params, const llama_model* model,
                                              const settings& s, typename Manager::config c) {
    return attachment::attach(params, model, s, [s, c = std::move(c)](const model_facts& f) {
        return engine::manager_cache<Manager>::open(with_facts(c, f, s));
    });
}

} // namespace kvtl_llama
