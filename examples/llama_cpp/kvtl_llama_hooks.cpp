// What happens while llama.cpp computes a graph.
// SPDX-License-Identifier: MIT
#include "kvtl_llama_state.hpp"

#include <exception>

namespace kvtl_llama {

bool attachment::state::on_node(ggml_tensor* node, bool ask, void* data) {
    state& a = *static_cast<state*>(data);
    if (a.doing == mode::idle) {
        a.intruded = true;
        return !ask;
    }
    try {
        if (ask) return a.doing == mode::observing ? a.watch.ask(node) : a.wants(node);
        if (a.doing == mode::observing)
            a.watch.stop(node);
        else
            a.attend(node);
    } catch (const std::exception& e) { // there is C below
        a.failure = status::failure(errc::unsupported, "out of memory for llama.cpp's graph: %s", e.what());
    }
    return true; // after a failure on_abort() ends the graph: false here would pass for success
}

/// Whether to stop at a node; notes on the way where keys and values go.
bool attachment::state::wants(const ggml_tensor* node) {
    computing = true;
    if (node->op == GGML_OP_FLASH_ATTN_EXT) return true;
    if (node->op != GGML_OP_SET_ROWS) return false;
    if (const int k = detail::layer_of(node, "cache_k_l"); k >= 0)
        written_keys.note(node, k, room);
    else if (const int v = detail::layer_of(node, "cache_v_l"); v >= 0)
        written_values.note(node, v, room);
    return false;
}

bool attachment::state::on_abort(void* data) {
    const state& a = *static_cast<const state*>(data);
    return !a.failure.ok() || (a.users_abort != nullptr && a.users_abort(a.users_abort_data));
}

void attachment::state::attend(ggml_tensor* node) {
    if (!failure.ok()) return; // a device that does not look at on_abort() computes on
    const int number = detail::layer_of_keys(node->src[1]);
    const int layer = number >= 0 && static_cast<std::size_t>(number) < layer_of.size()
                          ? layer_of[static_cast<std::size_t>(number)]
                          : -1;
    if (layer < 0 || static_cast<std::uint32_t>(layer) != next_layer || written_keys.layer() != number ||
        written_values.layer() != number)
        failure =
            status::failure(errc::unsupported,
                            "llama.cpp came to layer %d where layer %d was next: it split the batch, or its "
                            "graph changed since start()",
                            number, next_layer < facts.layers.size() ? facts.layers[next_layer] : -1);
    else if (static_cast<std::size_t>(node->src[0]->ne[1]) != tokens || written_keys.tokens() != tokens ||
             written_values.tokens() != tokens)
        failure = status::failure(
            errc::unsupported,
            "llama.cpp split the batch: its graph has %d of %zu tokens; valid: smaller batches",
            static_cast<int>(node->src[0]->ne[1]), tokens);
    else if (status e = attend_layer(node, next_layer); !e)
        failure = e;
    written_keys.forget();
    written_values.forget();
    ++next_layer;
}

/// What llama.cpp computes now ends with this layer's query. A hint, and nothing where the preset does not care.
void attachment::state::announce(std::uint32_t layer, unsigned shard) noexcept {
    for (const kvtl::batch_part& part : parts)
        if (part.kind == kvtl::part_kind::decode)
            static_cast<void>(cache->before_query(part.seq, layer, shard));
}

status attachment::state::attend_layer(ggml_tensor* node, std::uint32_t layer) {
    const std::size_t key = std::size_t{facts.shape.kv_heads} * facts.shape.head_dim,
                      query = std::size_t{facts.shape.query_heads} * facts.shape.head_dim;
    const std::span<const float> q = detail::queries_of(node->src[0], queries, query_room);
    const kvtl::tensor_view k = written_keys.rows(keys), v = written_values.rows(values);
    if (q.size() != tokens * query || k.size() != tokens * key || v.size() != tokens * key)
        return status::failure(errc::unsupported, "layer %d has other tensors than start() saw",
                               facts.layers[layer]);
    kvtl::layer_input in{.q = q, .k = k, .v = v};
    if (!sinks.empty()) in.sink_logits = sinks[layer];
    const bool in_place = detail::on_host(node);
    if (!in_place && attended.size() < tokens * query) attended.resize(tokens * query);
    const std::span<float> out(in_place ? static_cast<float*>(node->data) : attended.data(), tokens * query);
    workers.parallel(per_shard.size(), [&](std::size_t i) noexcept {
        const auto shard = static_cast<unsigned>(i);
        per_shard[i] = cache->forward(parts, layer, in, out, shard);
        if (per_shard[i].ok() && layer + 1 < facts.layers.size()) announce(layer + 1, shard);
    });
    for (const status& done : per_shard)
        if (!done) return status::failure(done.code(), "layer %d: %s", facts.layers[layer], done.what());
    if (!in_place) ggml_backend_tensor_set(node, out.data(), 0, out.size_bytes());
    return {};
}

} // namespace kvtl_llama
