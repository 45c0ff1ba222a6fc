// SPDX-License-Identifier: MIT
#include "model.hpp"

#include "matmul.hpp"

#include <cmath>

namespace engine {

namespace {

std::string extents(std::uint64_t rows, std::uint64_t columns) {
    return std::to_string(rows) + " x " + std::to_string(columns);
}

tensor matrix(const gguf_file& file, const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    const tensor& t = file.tensor_at(name);
    if (t.rows != rows || t.columns != columns)
        file.reject("tensor '" + name + "' is " + extents(t.rows, t.columns) + ", but " +
                    extents(rows, columns) + " was expected");
    const bool quantised = t.type == tensor_type::q8_0 || t.type == tensor_type::q4_0;
    if (quantised && columns % 32 != 0)
        file.reject("tensor '" + name + "' has rows of " + std::to_string(columns) + ", which " +
                    type_name(t.type) + " cannot store");
    return t;
}

std::vector<float> vector(const gguf_file& file, const std::string& name, std::uint64_t size) {
    const tensor t = matrix(file, name, 1, size);
    std::vector<float> values(size);
    expand(t.type, t.data, 0, size, values.data());
    return values;
}

std::vector<float> optional_vector(const gguf_file& file, const std::string& name, std::uint64_t size) {
    return file.find(name) == nullptr ? std::vector<float>() : vector(file, name, size);
}

/// A positive count below 2^24: larger ones are mistakes, and products of two stay in 64 bits.
std::uint32_t count(const gguf_file& file, const std::string& key) {
    const auto value = file.integer(key);
    if (value == 0 || value >= (1U << 24))
        file.reject("metadata '" + key + "' is " + std::to_string(value) + "; valid: 1 to 16777215");
    return static_cast<std::uint32_t>(value);
}

std::uint32_t count_or(const gguf_file& file, const std::string& key, std::uint32_t otherwise) {
    return file.has(key) ? count(file, key) : otherwise;
}

} // namespace

void model::read_hyper(const gguf_file& file) {
    hyper_.architecture = file.string("general.architecture");
    const std::string& name = hyper_.architecture;
    if (name != "llama" && name != "qwen2" && name != "qwen3")
        file.reject("architecture '" + name + "' is not supported; valid: llama, qwen2, qwen3");
    if (file.has(name + ".expert_count") && file.integer(name + ".expert_count") != 0)
        file.reject("mixtures of experts are not supported");
    hyper_.pairing = name == "llama" ? rope_pairing::neighbours : rope_pairing::halves;
    hyper_.width = count(file, name + ".embedding_length");
    hyper_.hidden = count(file, name + ".feed_forward_length");
    hyper_.context = count(file, name + ".context_length");
    hyper_.epsilon = static_cast<float>(file.number(name + ".attention.layer_norm_rms_epsilon"));

    kvtl::shape& s = hyper_.shape;
    s.layers = count(file, name + ".block_count");
    s.query_heads = count(file, name + ".attention.head_count");
    s.kv_heads = count_or(file, name + ".attention.head_count_kv", s.query_heads);
    s.head_dim = hyper_.width / s.query_heads;
    if (file.has(name + ".attention.key_length")) s.head_dim = count(file, name + ".attention.key_length");
    if (count_or(file, name + ".attention.value_length", s.head_dim) != s.head_dim)
        file.reject("keys and values of different lengths are not supported");
    if (const auto checked = kvtl::geometry::from(s); !checked) file.reject(checked.error().message);
}

void model::read_rope(const gguf_file& file) {
    const std::string prefix = hyper_.architecture + ".rope.";
    const std::uint32_t rotated = count_or(file, prefix + "dimension_count", hyper_.shape.head_dim);
    if (rotated % 2 != 0 || rotated > hyper_.shape.head_dim)
        file.reject("metadata '" + prefix + "dimension_count' is " + std::to_string(rotated) +
                    "; valid: an even number up to the head size " + std::to_string(hyper_.shape.head_dim));
    const double base = file.has(prefix + "freq_base") ? file.number(prefix + "freq_base") : 10000.0;
    double stretch = 1.0;
    if (file.has(prefix + "scaling.type")) {
        const auto type = file.string(prefix + "scaling.type");
        if (type == "linear")
            stretch = file.number(prefix + "scaling.factor");
        else if (type != "none")
            file.reject("RoPE scaling '" + std::string(type) + "' is not supported; valid: linear");
    }
    if (base <= 0 || stretch <= 0) file.reject("RoPE base and scaling factor must be positive");
    // Llama 3.1 and later slow down the low frequencies by factors of their own.
    const auto factors = optional_vector(file, "rope_freqs.weight", rotated / 2);
    for (std::uint32_t i = 0; i < rotated / 2; ++i) {
        const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
        frequencies_.push_back(std::pow(base, -2.0 * i / rotated) / (stretch * factor));
    }
}

model::model(const gguf_file& file) {
    read_hyper(file);
    read_rope(file);
    const std::uint64_t width = hyper_.width;
    const std::uint64_t hidden = hyper_.hidden;
    const std::uint64_t q_size = std::uint64_t{hyper_.shape.query_heads} * hyper_.shape.head_dim;
    const std::uint64_t kv_size = std::uint64_t{hyper_.shape.kv_heads} * hyper_.shape.head_dim;

    const tensor& table = file.tensor_at("token_embd.weight");
    embedding_ = matrix(file, "token_embd.weight", table.rows, width);
    hyper_.vocabulary = static_cast<std::uint32_t>(table.rows);
    if (file.strings("tokenizer.ggml.tokens").size() > table.rows)
        file.reject("tensor 'token_embd.weight' has fewer rows than there are tokens");
    const bool tied = file.find("output.weight") == nullptr;
    unembedding_ = tied ? embedding_ : matrix(file, "output.weight", table.rows, width);
    final_norm_ = vector(file, "output_norm.weight", width);

    const bool biased = hyper_.architecture == "qwen2";
    const bool head_norms = hyper_.architecture == "qwen3";
    for (std::uint32_t l = 0; l < hyper_.shape.layers; ++l) {
        const std::string prefix = "blk." + std::to_string(l) + ".";
        layer_weights w;
        w.attention_norm = vector(file, prefix + "attn_norm.weight", width);
        w.q = matrix(file, prefix + "attn_q.weight", q_size, width);
        w.k = matrix(file, prefix + "attn_k.weight", kv_size, width);
        w.v = matrix(file, prefix + "attn_v.weight", kv_size, width);
        w.output = matrix(file, prefix + "attn_output.weight", width, q_size);
        const auto bias = [&](const std::string& name, std::uint64_t size) {
            return biased ? vector(file, prefix + name, size) : optional_vector(file, prefix + name, size);
        };
        w.q_bias = bias("attn_q.bias", q_size);
        w.k_bias = bias("attn_k.bias", kv_size);
        w.v_bias = bias("attn_v.bias", kv_size);
        w.output_bias = optional_vector(file, prefix + "attn_output.bias", width);
        if (head_norms) {
            w.q_norm = vector(file, prefix + "attn_q_norm.weight", hyper_.shape.head_dim);
            w.k_norm = vector(file, prefix + "attn_k_norm.weight", hyper_.shape.head_dim);
        }
        w.hidden_norm = vector(file, prefix + "ffn_norm.weight", width);
        w.gate = matrix(file, prefix + "ffn_gate.weight", hidden, width);
        w.up = matrix(file, prefix + "ffn_up.weight", hidden, width);
        w.down = matrix(file, prefix + "ffn_down.weight", width, hidden);
        layers_.push_back(std::move(w));
    }
}

} // namespace engine
