// SPDX-License-Identifier: MIT
#include "graph_facts.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kvtl_llama::detail {

namespace {

using kvtl::errc;
using kvtl::status;

float parameter(const ggml_tensor* t, std::size_t i) noexcept {
    float x = 0;
    std::memcpy(&x, t->op_params + i, sizeof x);
    return x;
}

std::vector<float> floats_of(const ggml_tensor* t, std::size_t n, staging& room) {
    std::vector<float> x(n);
    if (t->type == GGML_TYPE_F32)
        std::memcpy(x.data(), bytes_of(t, 0, n * sizeof(float), room), n * sizeof(float));
    return x;
}

/// From the rows that are about to be written back to the rotation. Anything between them that computes (a norm after
/// the rotation) makes the angles useless.
rope_facts rope_before(const ggml_tensor* t, staging& room) {
    while (t != nullptr && (t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
                            t->op == GGML_OP_CONT || t->op == GGML_OP_TRANSPOSE))
        t = t->src[0];
    rope_facts r;
    if (t == nullptr || t->op != GGML_OP_ROPE) return r;
    r.found = true;
    r.dims = t->op_params[1];
    r.mode = t->op_params[2];
    r.original_context = t->op_params[4];
    r.base = parameter(t, 5);
    r.scale = parameter(t, 6);
    r.extension = parameter(t, 7);
    r.offset = t->op_params[15];
    if (const ggml_tensor* factors = t->src[2]; factors != nullptr) {
        r.factors = floats_of(factors, static_cast<std::size_t>(r.dims / 2), room);
        r.factors_name = factors->name;
    }
    return r;
}

/// Angle per position of each pair; empty where it is not the plain rule.
std::vector<double> frequencies_of(const rope_facts& r) {
    std::vector<double> f;
    const bool plain = r.found && (r.mode == GGML_ROPE_TYPE_NORMAL || r.mode == GGML_ROPE_TYPE_NEOX) &&
                       r.extension == 0 && r.offset == 0;
    if (!plain) return f;
    for (std::int32_t i = 0; i < r.dims / 2; ++i) {
        const double divisor =
            r.factors.empty() ? 1.0 : static_cast<double>(r.factors[static_cast<std::size_t>(i)]);
        f.push_back(static_cast<double>(r.scale) * std::pow(static_cast<double>(r.base), -2.0 * i / r.dims) /
                    divisor);
    }
    return f;
}

/// longrope: llama.cpp chooses the factors by its own cells, kvtl holds longer contexts than these.
status check_long_rope(const rope_facts& r, const settings& s) {
    const auto original = static_cast<std::size_t>(std::max(r.original_context, 0));
    const bool is_short = r.factors_name.find("rope_factors_short") != std::string::npos;
    const bool is_long = r.factors_name.find("rope_factors_long") != std::string::npos;
    if (is_short && s.max_tokens > original)
        return status::failure(
            errc::unsupported,
            "the model rotates contexts beyond %zu tokens by other factors, which llama.cpp "
            "chooses by its cells; valid: max_tokens up to %zu, or cells above that",
            original, original);
    if (is_long && s.max_tokens <= original)
        return status::failure(
            errc::unsupported,
            "the model rotates contexts up to %zu tokens by other factors, which llama.cpp "
            "chooses by its cells; valid: cells up to %zu, or max_tokens above that",
            original, original);
    return {};
}

status unknown_mask(const seen_layer& l) {
    return status::failure(
        errc::unsupported,
        "layer %d has a mask that kvtl_llama cannot read; valid: f16, as of llama.cpp v0.5.0", l.number);
}

status check_layer(const seen_layer& l, const seen_layer& first, const seen_batch& batch) {
    if (l.number < 0 || !l.standard)
        return status::failure(
            errc::unsupported,
            "an attention of this model does not read llama.cpp's cells as kvtl_llama knows "
            "them; this architecture cannot be attached");
    if (l.values_in_keys || l.key_dim != l.value_dim)
        return status::failure(
            errc::unsupported,
            "layer %d: keys have %d numbers and values %d (MLA); valid: models whose keys and "
            "values are of one size",
            l.number, static_cast<int>(l.key_dim), static_cast<int>(l.value_dim));
    if (!l.own_rows)
        return status::failure(
            errc::unsupported,
            "layer %d attends keys and values of another layer; valid: models whose layers "
            "each have their own",
            l.number);
    if (l.chosen != 0)
        return status::failure(
            errc::unsupported,
            "layer %d attends what the model itself chooses; valid: models that attend all", l.number);
    if (l.alibi != 0)
        return status::failure(errc::unsupported, "layer %d has ALiBi slopes; valid: models without",
                               l.number);
    if (l.query_heads != first.query_heads || l.kv_heads != first.kv_heads || l.key_dim != first.key_dim)
        return status::failure(
            errc::unsupported,
            "layer %d has %d query heads, %d KV heads of %d, layer %d has %d, %d of %d; valid: "
            "models whose layers are alike",
            l.number, static_cast<int>(l.query_heads), static_cast<int>(l.kv_heads),
            static_cast<int>(l.key_dim), first.number, static_cast<int>(first.query_heads),
            static_cast<int>(first.kv_heads), static_cast<int>(first.key_dim));
    if (l.scale != first.scale || l.softcap != first.softcap || l.sinks.size() != first.sinks.size())
        return status::failure(errc::unsupported,
                               "layer %d has another attention scale, softcap or sinks than layer %d; valid: "
                               "models whose layers are alike",
                               l.number, first.number);
    if (l.tokens != batch.tokens || l.rows != batch.tokens || l.width != l.kv_heads * l.key_dim)
        return status::failure(errc::unsupported,
                               "layer %d attends %d of a batch's %d tokens; valid: models that attend all",
                               l.number, static_cast<int>(l.tokens), static_cast<int>(batch.tokens));
    if (l.seen_by_first < 0 || l.seen_by_last < 0) return unknown_mask(l);
    // A token sees those before it and itself, and nothing else is in the cells.
    const std::int64_t first_sees = batch.first + 1, last_sees = batch.first + batch.tokens;
    if (l.seen_by_first != first_sees || l.seen_by_last != last_sees)
        return status::failure(errc::unsupported,
                               "layer %d lets token %d see %d tokens, and token %d %d; valid: causal models, "
                               "where these are %d and %d",
                               l.number, static_cast<int>(batch.first), static_cast<int>(l.seen_by_first),
                               static_cast<int>(last_sees - 1), static_cast<int>(l.seen_by_last),
                               static_cast<int>(first_sees), static_cast<int>(last_sees));
    return {};
}

} // namespace

bool graph_watch::ask(const ggml_tensor* node) {
    saw_nodes_ = true;
    if (node->op == GGML_OP_FLASH_ATTN_EXT) return true;
    if (node->op != GGML_OP_SET_ROWS) return false;
    if (const int k = layer_of(node, "cache_k_l"); k >= 0) {
        keys_.note(node, k, room_);
        rope_ = rope_before(node->src[0], room_);
    } else if (const int v = layer_of(node, "cache_v_l"); v >= 0) {
        values_.note(node, v, room_);
    }
    return false;
}

void graph_watch::stop(const ggml_tensor* node) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
    seen_layer l;
    l.number = layer_of_keys(k);
    l.query_heads = q->ne[2];
    l.kv_heads = k->ne[2];
    l.key_dim = k->ne[0];
    l.value_dim = v->ne[0];
    l.tokens = q->ne[1];
    l.scale = parameter(node, 0);
    l.alibi = parameter(node, 1);
    l.softcap = parameter(node, 2);
    l.chosen = node->op_params[4];
    l.values_in_keys = root_of(k) == root_of(v);
    l.own_rows = keys_.layer() == l.number && values_.layer() == l.number && layer_of_values(v) == l.number;
    l.rows = l.own_rows && values_.tokens() == keys_.tokens() ? static_cast<std::int64_t>(keys_.tokens()) : 0;
    l.width = keys_.width() == values_.width() ? static_cast<std::int64_t>(keys_.width()) : 0;
    l.standard = node->type == GGML_TYPE_F32 && q->type == GGML_TYPE_F32 && q->ne[3] == 1 && k->ne[3] == 1 &&
                 ggml_is_contiguous(node);
    l.seen_by_first = visible_cells(mask, 0, room_);
    l.seen_by_last = visible_cells(mask, l.tokens - 1, room_);
    if (node->src[4] != nullptr)
        l.sinks = floats_of(node->src[4], static_cast<std::size_t>(l.query_heads), room_);
    if (l.own_rows) l.rope = std::exchange(rope_, {});
    keys_.forget();
    values_.forget();
    layers_.push_back(std::move(l));
}

std::vector<seen_layer> graph_watch::take() {
    return std::exchange(layers_, {});
}

kvtl::result<model_facts> facts_of(const std::vector<seen_layer>& layers, const settings& s,
                                   const seen_batch& batch) {
    if (layers.empty())
        return status::failure(
            errc::unsupported,
            "this llama.cpp builds no FLASH_ATTN_EXT nodes for this model, where its cache could "
            "be replaced; valid: a model with attention, and llama.cpp as of v0.5.0");
    const seen_layer& first = layers.front();
    model_facts f;
    for (const seen_layer& l : layers) {
        if (status e = check_layer(l, first, batch); !e) return e;
        if (status e = check_long_rope(l.rope, s); !e) return e;
        if (!f.layers.empty() && l.number <= f.layers.back())
            return status::failure(
                errc::unsupported,
                "layer %d comes after layer %d; valid: models whose layers run once, in order", l.number,
                f.layers.back());
        f.layers.push_back(l.number);
    }
    f.shape = {.layers = static_cast<std::uint32_t>(layers.size()),
               .query_heads = static_cast<std::uint32_t>(first.query_heads),
               .kv_heads = static_cast<std::uint32_t>(first.kv_heads),
               .head_dim = static_cast<std::uint32_t>(first.key_dim)};
    f.scale = first.scale;
    f.softcap = first.softcap;
    f.sink_logits = !first.sinks.empty();
    return f;
}

kvtl::status find_windows(const std::vector<seen_layer>& layers, std::uint32_t window, model_facts& facts) {
    if (layers.size() != facts.layers.size())
        return status::failure(
            errc::unsupported,
            "the model's graph changes with positions; this architecture cannot be attached");
    std::vector<std::uint32_t> windows;
    for (const seen_layer& l : layers) {
        if (l.seen_by_last < 0) return unknown_mask(l);
        // Of the tokens at W, W + 1, 2W - 1 and its own at 2W: all of them, or all but the first.
        if (l.seen_by_last != 4 && l.seen_by_last != 3)
            return status::failure(
                errc::unsupported,
                "layer %d looks at chunks, or another window than the last %u tokens; valid: "
                "plain sliding windows",
                l.number, window);
        windows.push_back(l.seen_by_last == 3 ? window : 0);
    }
    if (std::any_of(windows.begin(), windows.end(), [](std::uint32_t w) { return w != 0; }))
        facts.windows = std::move(windows);
    return {};
}

void find_rotation(const std::vector<seen_layer>& layers, model_facts& facts) {
    const seen_layer* like = nullptr;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        if (!facts.windows.empty() && facts.windows[i] != 0) continue;
        if (like != nullptr && layers[i].rope != like->rope) return; // other angles by layer
        like = &layers[i];
    }
    if (like == nullptr) like = &layers.front(); // all of them slide
    facts.rope_frequencies = frequencies_of(like->rope);
    facts.rope_neighbours = like->rope.mode == GGML_ROPE_TYPE_NORMAL;
}

} // namespace kvtl_llama::detail
