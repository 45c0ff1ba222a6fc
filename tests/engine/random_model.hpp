// Small models with random weights, and a forward pass over them that shares nothing with the engine: double
// precision, no cache, every position recomputed.
// SPDX-License-Identifier: MIT
#pragma once

#include "gguf_writer.hpp"

#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace engine {

struct random_model {
    std::string architecture = "llama";
    tensor_type type = tensor_type::f32;
    bool tied = true;
    bool rope_factors = false; ///< a tensor rope_freqs.weight, as Llama 3.1 has it
    std::size_t layers = 2, width = 64, hidden = 96, query_heads = 4, kv_heads = 2, head_dim = 32,
                context = 256;
    std::size_t rotated = 32; ///< elements of a head that RoPE turns
    double rope_base = 10000, epsilon = 1e-5;
    std::uint64_t seed = 7;
    std::vector<std::uint32_t> owner{}; ///< layer whose keys and values each layer attends; empty: its own
    std::map<std::string, std::vector<double>> weights{}; ///< filled by build(), exactly as stored

    static constexpr std::size_t vocabulary = 320; ///< 256 bytes, merges, 2 control tokens, padding

    gguf_writer build() {
        gguf_writer file;
        const std::string a = architecture + ".";
        const auto u32 = [&](const std::string& key, std::size_t v) {
            file.u32(a + key, static_cast<std::uint32_t>(v));
        };
        file.text("general.architecture", architecture);
        file.text("general.name", "random");
        u32("block_count", layers);
        u32("context_length", context);
        u32("embedding_length", width);
        u32("feed_forward_length", hidden);
        u32("attention.head_count", query_heads);
        u32("attention.head_count_kv", kv_heads);
        u32("attention.key_length", head_dim);
        u32("attention.value_length", head_dim);
        u32("rope.dimension_count", rotated);
        file.f32(a + "rope.freq_base", static_cast<float>(rope_base));
        file.f32(a + "attention.layer_norm_rms_epsilon", static_cast<float>(epsilon));
        add_tokenizer(file);

        std::mt19937_64 random(seed);
        const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53 * 2 - 1; };
        const auto add = [&](const std::string& name, std::size_t rows, std::size_t columns, tensor_type t,
                             double middle, double spread) {
            std::vector<double> values(rows * columns);
            for (double& v : values) v = middle + spread * uniform();
            auto stored = store_as(t, values);
            const std::vector<std::uint64_t> extents =
                rows == 1 ? std::vector<std::uint64_t>{columns} : std::vector<std::uint64_t>{columns, rows};
            file.tensor(name, extents, t, stored.bytes);
            weights[name] = std::move(stored.values);
        };
        const auto matrix = [&](const std::string& name, std::size_t rows, std::size_t columns) {
            add(name, rows, columns, type, 0, 2.5 / std::sqrt(static_cast<double>(columns)));
        };
        const auto norm = [&](const std::string& name, std::size_t n) {
            add(name, 1, n, tensor_type::f32, 1, 0.3);
        };
        const auto bias = [&](const std::string& name, std::size_t n) {
            add(name, 1, n, tensor_type::f32, 0, 0.5);
        };

        add("token_embd.weight", vocabulary, width, type, 0, 1);
        if (!tied) matrix("output.weight", vocabulary, width);
        norm("output_norm.weight", width);
        if (rope_factors) add("rope_freqs.weight", 1, rotated / 2, tensor_type::f32, 2, 1);
        for (std::size_t l = 0; l < layers; ++l) {
            const std::string b = "blk." + std::to_string(l) + ".";
            norm(b + "attn_norm.weight", width);
            matrix(b + "attn_q.weight", query_heads * head_dim, width);
            matrix(b + "attn_k.weight", kv_heads * head_dim, width);
            matrix(b + "attn_v.weight", kv_heads * head_dim, width);
            matrix(b + "attn_output.weight", width, query_heads * head_dim);
            if (architecture == "qwen2") {
                bias(b + "attn_q.bias", query_heads * head_dim);
                bias(b + "attn_k.bias", kv_heads * head_dim);
                bias(b + "attn_v.bias", kv_heads * head_dim);
            }
            if (architecture == "qwen3") {
                norm(b + "attn_q_norm.weight", head_dim);
                norm(b + "attn_k_norm.weight", head_dim);
            }
            norm(b + "ffn_norm.weight", width);
            matrix(b + "ffn_gate.weight", hidden, width);
            matrix(b + "ffn_up.weight", hidden, width);
            matrix(b + "ffn_down.weight", width, hidden);
        }
        return file;
    }

    /// Logits (V) behind the last of `ids`. build() comes first.
    [[nodiscard]] std::vector<double> logits(const std::vector<std::uint32_t>& ids) const {
        using row = std::vector<double>;
        const auto at = [&](const std::string& name) -> const row& { return weights.at(name); };
        const auto has = [&](const std::string& name) { return weights.contains(name); };
        const auto normed = [&](const row& x, const row& w) {
            double square = 0;
            for (const double v : x) square += v * v;
            const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) +
                                               static_cast<double>(static_cast<float>(epsilon)));
            row y(x.size());
            for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
            return y;
        };
        const auto product = [&](const row& w, const row& x) {
            row y(w.size() / x.size(), 0.0);
            for (std::size_t r = 0; r < y.size(); ++r)
                for (std::size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
            return y;
        };
        const auto with_bias = [&](row y, const std::string& name) {
            if (has(name))
                for (std::size_t i = 0; i < y.size(); ++i) y[i] += at(name)[i];
            return y;
        };
        // One head of a projection at a position: normalised for qwen3, then turned.
        const auto head = [&](const row& all, std::size_t h, const std::string& norm_name,
                              std::size_t position) {
            row x(all.begin() + static_cast<std::ptrdiff_t>(h * head_dim),
                  all.begin() + static_cast<std::ptrdiff_t>((h + 1) * head_dim));
            if (has(norm_name)) x = normed(x, at(norm_name));
            row y = x;
            for (std::size_t i = 0; i < rotated / 2; ++i) {
                double angle =
                    static_cast<double>(position) *
                    std::pow(rope_base, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
                if (rope_factors) angle /= at("rope_freqs.weight")[i];
                const std::size_t a = architecture == "llama" ? 2 * i : i;
                const std::size_t b = architecture == "llama" ? 2 * i + 1 : i + rotated / 2;
                y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
                y[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
            }
            return y;
        };

        std::vector<row> x;
        for (const auto id : ids) {
            const auto first = at("token_embd.weight").begin() + static_cast<std::ptrdiff_t>(id * width);
            x.emplace_back(first, first + static_cast<std::ptrdiff_t>(width));
        }
        std::vector<std::vector<row>> all_k(layers), all_v(layers);
        for (std::size_t l = 0; l < layers; ++l) {
            const std::size_t from = owner.empty() ? l : owner[l];
            const std::string b = "blk." + std::to_string(l) + ".", of = "blk." + std::to_string(from) + ".";
            std::vector<row> q;
            std::vector<row>&k = all_k[from], &v = all_v[from];
            for (const auto& r : x) {
                const row n = normed(r, at(b + "attn_norm.weight"));
                q.push_back(with_bias(product(at(b + "attn_q.weight"), n), b + "attn_q.bias"));
                if (from != l) continue;
                k.push_back(with_bias(product(at(b + "attn_k.weight"), n), b + "attn_k.bias"));
                v.push_back(with_bias(product(at(b + "attn_v.weight"), n), b + "attn_v.bias"));
            }
            for (std::size_t t = 0; t < x.size(); ++t) {
                row mixed(query_heads * head_dim, 0.0);
                for (std::size_t h = 0; h < query_heads; ++h) {
                    const std::size_t kv = h / (query_heads / kv_heads);
                    const row query = head(q[t], h, b + "attn_q_norm.weight", t);
                    row weight(t + 1, 0.0);
                    double total = 0;
                    for (std::size_t s = 0; s <= t; ++s) {
                        const row key = head(k[s], kv, of + "attn_k_norm.weight", s);
                        for (std::size_t d = 0; d < head_dim; ++d) weight[s] += query[d] * key[d];
                        weight[s] = std::exp(weight[s] / std::sqrt(static_cast<double>(head_dim)));
                        total += weight[s];
                    }
                    for (std::size_t s = 0; s <= t; ++s)
                        for (std::size_t d = 0; d < head_dim; ++d)
                            mixed[h * head_dim + d] += weight[s] / total * v[s][kv * head_dim + d];
                }
                const row y = product(at(b + "attn_output.weight"), mixed);
                for (std::size_t i = 0; i < width; ++i) x[t][i] += y[i];
                const row n = normed(x[t], at(b + "ffn_norm.weight"));
                row gate = product(at(b + "ffn_gate.weight"), n);
                const row up = product(at(b + "ffn_up.weight"), n);
                for (std::size_t i = 0; i < hidden; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
                const row z = product(at(b + "ffn_down.weight"), gate);
                for (std::size_t i = 0; i < width; ++i) x[t][i] += z[i];
            }
        }
        return product(at(tied ? "token_embd.weight" : "output.weight"),
                       normed(x.back(), at("output_norm.weight")));
    }

    /// Byte-level, with a few merges; tokens above the merges are control tokens, then padding that never
    /// encodes.
    void add_tokenizer(gguf_writer& file) const {
        std::vector<std::string> tokens;
        std::vector<std::int32_t> types;
        for (int byte = 0, next = 0x100; byte < 256; ++byte) {
            const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
            const int c = printable ? byte : next++;
            tokens.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                                      : std::string{static_cast<char>(0xC0 | (c >> 6)),
                                                    static_cast<char>(0x80 | (c & 0x3F))});
        }
        const std::string space = "\xC4\xA0"; // U+0120, the byte-level space
        const std::vector<std::string> merges = {space + " t", "h e",        space + "t he", "i n",
                                                 "e r",        space + " a", "o n",          "in g"};
        for (const auto& m : merges) {
            const auto gap = m.find(' ');
            tokens.push_back(m.substr(0, gap) + m.substr(gap + 1));
        }
        types.assign(tokens.size(), 1);
        tokens.push_back("<|endoftext|>");
        tokens.push_back("<|im_end|>");
        types.resize(tokens.size(), 3);
        while (tokens.size() < vocabulary) tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
        types.resize(tokens.size(), 5);
        file.text("tokenizer.ggml.model", "gpt2");
        file.text("tokenizer.ggml.pre", architecture == "llama" ? "llama-bpe" : "qwen2");
        file.texts("tokenizer.ggml.tokens", tokens);
        file.i32s("tokenizer.ggml.token_type", types);
        file.texts("tokenizer.ggml.merges", merges);
        file.u32("tokenizer.ggml.bos_token_id", 264);
        file.u32("tokenizer.ggml.eos_token_id", 264);
        file.flag("tokenizer.ggml.add_bos_token", false);
    }
};

} // namespace engine
