// How an attachment finds out what the model does, before there is a cache.
// SPDX-License-Identifier: MIT
#include "kvtl_llama_state.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace kvtl_llama {

status attachment::state::decode_quietly(llama_pos position, int tokens_now) {
    std::array<llama_token, 3> ids{};
    std::array<llama_pos, 3> positions{position, position + 1, position + 2};
    std::array<std::int32_t, 3> counts{1, 1, 1};
    std::array<llama_seq_id, 1> zero{0};
    std::array<llama_seq_id*, 3> sequences{zero.data(), zero.data(), zero.data()};
    std::array<std::int8_t, 3> logits{};
    logits[static_cast<std::size_t>(tokens_now) - 1] = 1;
    static_cast<void>(watch.take());
    doing = mode::observing;
    const std::int32_t code = llama_decode(context, {.n_tokens = tokens_now,
                                                     .token = ids.data(),
                                                     .embd = nullptr,
                                                     .pos = positions.data(),
                                                     .n_seq_id = counts.data(),
                                                     .seq_id = sequences.data(),
                                                     .logits = logits.data()});
    doing = mode::idle;
    if (code != 0)
        return status::failure(errc::unsupported,
                               "start: llama_decode returned %d for %d tokens at position %d", code,
                               tokens_now, position);
    return {};
}

status attachment::state::dry_run() {
    const std::int32_t window = llama_model_n_swa(model);
    if (window > 0 && window < 3)
        return status::failure(errc::unsupported,
                               "which layers slide cannot be found out: the model's window has %d tokens; "
                               "valid: 3 or more",
                               window);
    const int at_once = static_cast<int>(std::min<std::uint32_t>(batch, 3));
    int last = 0;
    for (int position = 0; position < 3; position += last) {
        last = std::min(at_once, 3 - position);
        if (status e = decode_quietly(position, last); !e) return e;
    }
    if (!watch.saw_nodes())
        return status::failure(
            errc::invalid_argument,
            "start: the context does not call back; valid: one made from the params that attach() "
            "filled in");
    const auto layers = watch.take();
    auto found = detail::facts_of(layers, s, {.first = 3 - last, .tokens = last});
    if (!found) return status::failure(found.error().code, "%s", found.error().message.c_str());
    facts = *std::move(found);
    facts.hybrid = llama_model_is_hybrid(model);
    facts.trained_context = static_cast<std::uint32_t>(std::max(0, llama_model_n_ctx_train(model)));
    sinks.clear(); // of a start() that failed
    if (facts.sink_logits)
        for (const auto& l : layers) sinks.push_back(l.sinks);
    layer_of.assign(static_cast<std::size_t>(facts.layers.back()) + 1, -1);
    for (std::size_t i = 0; i < facts.layers.size(); ++i)
        layer_of[static_cast<std::size_t>(facts.layers[i])] = static_cast<int>(i);
    if (window > 0)
        if (status e = probe_windows(static_cast<std::uint32_t>(window)); !e) return e;
    detail::find_rotation(layers, facts);
    return {};
}

status attachment::state::probe_windows(std::uint32_t window) {
    if (!llama_memory_can_shift(memory))
        return status::failure(
            errc::unsupported,
            "which layers slide cannot be found out: llama.cpp cannot move the model's cells");
    const auto w = static_cast<llama_pos>(window);
    llama_memory_seq_add(memory, 0, 2, 3, 2 * w - 3);
    llama_memory_seq_add(memory, 0, 0, 2, w);
    if (status e = decode_quietly(2 * w, 1); !e) return e;
    return detail::find_windows(watch.take(), window, facts);
}

status attachment::state::open_cache() {
    auto opened = open(facts);
    if (!opened) {
        why_not = opened.error().message;
        return status::failure(opened.error().code, "%s", why_not.c_str());
    }
    cache = *std::move(opened);
    const unsigned n = std::max(1U, cache->shards());
    per_shard.resize(n);
    written_keys.reserve(batch);
    written_values.reserve(batch);
    conversations.assign(s.max_sequences, {});
    parts.reserve(s.max_sequences);
    plan.emplace(s.max_sequences);
    return {};
}

} // namespace kvtl_llama
