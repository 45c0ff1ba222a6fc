// Attachments with a cache whose policies are known at compile time: no registry of presets, no names.
//
//   using cache_t = kvtl::dynakv;
//   auto attached = kvtl_llama::attach<cache_t>(params, model, {.max_tokens = 32768},
//                                               {.memory_bytes = 64 << 20, .io = {.path = "kv.bin"}});
// SPDX-License-Identifier: MIT
#pragma once

#include "kvtl_llama.hpp"
#include "manager_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace kvtl_llama {

/// The config with what the model's facts and the settings say: shape, lengths, attention, shards where there is but one,
/// and rotation where that is a plain rule. Fails where a policy turns keys and neither facts nor config say by which angles.
template <class Config>
[[nodiscard]] kvtl::result<Config> with_facts(Config c, const model_facts& f, const settings& s) {
    c.shape = f.shape;
    c.max_tokens = s.max_tokens != 0 ? s.max_tokens : f.trained_context;
    c.max_sequences = s.max_sequences;
    if (c.shards <= 1)
        c.shards = c.shard_by == kvtl::division::sequences ? std::min(s.threads, s.max_sequences)
                                                           : std::min(s.threads, f.shape.kv_heads);
    c.engine_inputs = s.engine_inputs;
    c.attention = {.scale = f.scale, .softcap = f.softcap, .windows = f.windows};
    bool known = true;
    const auto rotate = [&](auto& policy) {
        if constexpr (requires { policy.frequencies; }) {
            if (f.rope_frequencies.empty()) {
                known = known && !policy.frequencies.empty();
                return;
            }
            policy.frequencies = f.rope_frequencies;
            policy.dims = static_cast<std::uint32_t>(2 * f.rope_frequencies.size());
            policy.neighbours = f.rope_neighbours;
        }
    };
    rotate(c.position);
    rotate(c.compressor);
    if (!known)
        return kvtl::error(
            kvtl::errc::unsupported,
            "the cache turns keys, and how this model rotates them is no plain rule (other angles by "
            "layer, YaRN, sections); valid: frequencies in the config, or policies that leave keys alone");
    return c;
}

/// Manager: a kvtl::kv_manager. Of `c`, what with_facts() names is filled in.
template <class Manager>
[[nodiscard]] kvtl::result<attachment> attach(llama_context_params& params, const llama_model* model,
                                              const settings& s, typename Manager::config c) {
    return attachment::attach(
        params, model, s,
        [s, c = std::move(c)](const model_facts& f) -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
            auto config = with_facts(c, f, s);
            if (!config) return config.error();
            return engine::open_manager<Manager>(*config);
        });
}

} // namespace kvtl_llama
