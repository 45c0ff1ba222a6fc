// kvtl's calls for a whole batch, until the core has them.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <span>
#include <utility>

#if !__has_include(<kvtl/core/step/batch.hpp>) && !defined(KVTL_HAS_BATCH_PART)
namespace kvtl {
enum class part_kind : std::uint8_t { prompt, last_of_prompt, decode };
struct batch_part {
    sequence_id seq{};
    std::uint32_t tokens = 0;
    part_kind kind = part_kind::decode;
};
} // namespace kvtl
#endif

namespace kvtl_llama::detail {

template <class Cache>
kvtl::status forward(Cache& cache, std::span<const kvtl::batch_part> parts, std::uint32_t layer,
                     const kvtl::layer_input& in, std::span<float> out, unsigned shard,
                     const kvtl::shape& s) noexcept {
    if constexpr (requires { cache.forward(parts, layer, in, out, shard); }) {
        return cache.forward(parts, layer, in, out, shard);
    } else {
        const std::size_t key = std::size_t{s.kv_heads} * s.head_dim,
                          query = std::size_t{s.query_heads} * s.head_dim;
        std::size_t first = 0;
        for (const auto& p : parts) {
            const std::size_t each = p.kind == kvtl::part_kind::decode ? 1 : p.tokens;
            for (std::size_t t = 0; t < p.tokens; t += each, first += each) {
                kvtl::layer_input one = in;
                one.q = in.q.subspan(first * query, each * query);
                one.k = in.k.subspan(first * key, each * key);
                one.v = in.v.subspan(first * key, each * key);
                one.last_chunk = p.kind == kvtl::part_kind::last_of_prompt;
                const auto to = out.subspan(first * query, each * query);
                auto s2 = p.kind == kvtl::part_kind::decode ? cache.attend(p.seq, layer, one, to, shard)
                                                            : cache.prefill(p.seq, layer, one, to, shard);
                if (!s2) return s2;
            }
        }
        return {};
    }
}

template <class Cache>
kvtl::status rewind_to(Cache& cache, kvtl::sequence_id seq, std::size_t tokens, std::size_t has) {
    if constexpr (requires { cache.rewind_to(seq, tokens); })
        return cache.rewind_to(seq, tokens);
    else
        return cache.rewind(seq, has - tokens);
}

/// After a call that failed in some layer.
template <class Cache> kvtl::status give_back(Cache& cache, kvtl::sequence_id seq, std::size_t tokens) {
    if constexpr (requires { cache.rewind_to(seq, tokens); })
        return cache.rewind_to(seq, tokens);
    else
        return kvtl::status::failure(kvtl::errc::unsupported, "not yet");
}

template <class Options> bool set_attention(Options& o, const auto& f) {
    if constexpr (requires { o.attention.scale; }) {
        o.attention.scale = f.scale;
        o.attention.softcap = f.softcap;
        o.attention.windows = f.windows;
        return true;
    } else {
        return f.softcap == 0 && f.windows.empty() && !f.sink_logits;
    }
}

template <class Input> void set_sinks(Input& in, std::span<const float> sinks) {
    if constexpr (requires { in.sink_logits = sinks; }) in.sink_logits = sinks;
}

} // namespace kvtl_llama::detail
