// SPDX-License-Identifier: MIT
#include "tiny_models.hpp"

#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <random>

namespace tiny_models {

namespace {

constexpr std::uint32_t specials = 5; // before the bytes
constexpr std::uint32_t first_word = specials + 256;
constexpr const char* blank = "\xE2\x96\x81"; // what the tokenizer writes for a space

/// A GGUF file in the making. Keys without a dot in front are put behind the architecture's name.
class writer {
  public:
    explicit writer(const options& o)
        : o_(o), random_(o.seed), file_(gguf_init_empty()),
          tensors_(ggml_init(
              {.mem_size = 4096 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true})) {
        gguf_set_val_str(file_.get(), "general.architecture", o.architecture.c_str());
    }

    void number(const char* key, std::uint32_t value) {
        gguf_set_val_u32(file_.get(), of(key).c_str(), value);
    }
    void real(const char* key, float value) { gguf_set_val_f32(file_.get(), of(key).c_str(), value); }
    void flag(const char* key, bool value) { gguf_set_val_bool(file_.get(), of(key).c_str(), value); }
    void text(const char* key, const char* value) { gguf_set_val_str(file_.get(), of(key).c_str(), value); }
    void numbers(const char* key, const std::vector<std::uint32_t>& values) {
        gguf_set_arr_data(file_.get(), of(key).c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
    }

    /// `gain` is the standard deviation of what a row makes of inputs whose mean square is 1.
    void matrix(const std::string& name, std::uint32_t inputs, std::uint32_t outputs, float gain = 1) {
        store(name, {inputs, outputs}, o_.type,
              normal(std::size_t{inputs} * outputs, gain / std::sqrt(float(inputs))));
    }
    void experts(const std::string& name, std::uint32_t inputs, std::uint32_t outputs, std::uint32_t count,
                 ggml_type type) {
        store(name, {inputs, outputs, count}, type,
              normal(std::size_t{inputs} * outputs * count, 1 / std::sqrt(float(inputs))));
    }
    /// Rows of bytes are quiet, and the end of the text as loud as it shall be: what is generated can be read.
    void words(const std::string& name, float gain, float deviation) {
        auto values = normal(std::size_t{o_.embedding} * vocabulary, deviation * gain);
        for (std::uint32_t id = 0; id < first_word; ++id)
            for (std::uint32_t i = 0; i < o_.embedding; ++i)
                values[std::size_t{id} * o_.embedding + i] *= id == 2 ? o_.end_gain : .25F;
        store(name, {o_.embedding, vocabulary}, o_.type, std::move(values));
    }
    /// Stored as floats: norms, biases, sinks, small tables.
    void floats(const std::string& name, std::initializer_list<std::uint32_t> extents, float mean,
                float deviation) {
        std::size_t count = 1;
        for (const auto e : extents) count *= e;
        auto values = normal(count, deviation);
        for (float& x : values) x += mean;
        store(name, extents, GGML_TYPE_F32, std::move(values));
    }
    void norm(const std::string& name, std::uint32_t width, float mean = 1) {
        floats(name, {width}, mean, .05F * mean);
    }

    void vocabulary_of_syllables();

    [[nodiscard]] bool finish(const std::string& path) {
        return gguf_write_to_file(file_.get(), path.c_str(), false);
    }

  private:
    [[nodiscard]] std::string of(const char* key) const {
        return *key == '.' ? key + 1 : o_.architecture + "." + key;
    }
    [[nodiscard]] std::vector<float> normal(std::size_t count, float deviation) {
        std::vector<float> values(count);
        std::normal_distribution<float> distribution(0, deviation);
        for (float& x : values) x = distribution(random_);
        return values;
    }
    void store(const std::string& name, const std::vector<std::int64_t>& extents, ggml_type type,
               std::vector<float> values) {
        if (extents[0] % ggml_blck_size(type) != 0) type = GGML_TYPE_F16;
        ggml_tensor* t =
            ggml_new_tensor(tensors_.get(), type, static_cast<int>(extents.size()), extents.data());
        ggml_set_name(t, name.c_str());
        const auto rows = static_cast<std::int64_t>(values.size()) / extents[0];
        auto& bytes = data_.emplace_back(std::make_unique<std::vector<char>>(ggml_nbytes(t)));
        ggml_quantize_chunk(type, values.data(), bytes->data(), 0, rows, extents[0], nullptr);
        t->data = bytes->data();
        gguf_add_tensor(file_.get(), t);
    }
    void store(const std::string& name, std::initializer_list<std::uint32_t> extents, ggml_type type,
               std::vector<float> values) {
        store(name, std::vector<std::int64_t>(extents.begin(), extents.end()), type, std::move(values));
    }

    struct freed {
        void operator()(gguf_context* f) const { gguf_free(f); }
        void operator()(ggml_context* c) const { ggml_free(c); }
    };
    const options& o_;
    std::mt19937_64 random_;
    std::unique_ptr<gguf_context, freed> file_;
    std::unique_ptr<ggml_context, freed> tensors_;
    std::vector<std::unique_ptr<std::vector<char>>> data_;
};

void writer::vocabulary_of_syllables() {
    std::vector<std::string> words = {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    std::vector<std::int32_t> types = {2, 3, 3, 3, 3}; // 1 normal, 2 unknown, 3 control, 6 byte
    for (unsigned b = 0; b < 256; ++b) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", b);
        words.emplace_back(name);
    }
    types.resize(words.size(), 6);
    words.emplace_back(blank);
    for (char c = 'a'; c <= 'z'; ++c) words.emplace_back(1, c);
    for (const char* start : {"", blank})
        for (const char c : std::string("bcdfghjklmnprstvwxyz"))
            for (const char v : std::string("aeiou")) words.push_back(std::string(start) + c + v);
    for (const char* mark : {".", ",", "?", "!", ":", ";", "-", "'"}) words.emplace_back(mark);
    for (char c = '0'; c <= '9'; ++c) words.emplace_back(1, c);
    while (words.size() < vocabulary)
        words.push_back(std::string(blank) + char('a' + words.size() % 26) + "q");
    types.resize(words.size(), 1);
    // What was named first is merged last: blank, letters, syllables.
    std::vector<float> scores(words.size());
    for (std::size_t i = 0; i < words.size(); ++i) scores[i] = i < first_word ? 0.F : float(i) - 1000.F;

    std::vector<const char*> pointers;
    pointers.reserve(words.size());
    for (const auto& w : words) pointers.push_back(w.c_str());
    text(".tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file_.get(), "tokenizer.ggml.tokens", pointers.data(), pointers.size());
    gguf_set_arr_data(file_.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
    gguf_set_arr_data(file_.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    number(".tokenizer.ggml.unknown_token_id", 0);
    number(".tokenizer.ggml.bos_token_id", 1);
    number(".tokenizer.ggml.eos_token_id", 2);
    flag(".tokenizer.ggml.add_bos_token", true);
    if (!o_.chat_template.empty()) text(".tokenizer.chat_template", o_.chat_template.c_str());
}

/// What most architectures have: keys, and per layer norms, projections and a gated feed-forward part.
class builder {
  public:
    builder(writer& w, const options& o)
        : w_(w), o_(o), layers_(o.architecture == "gemma3n" ? 22 : o.layers) {}

    void build() {
        keys();
        w_.vocabulary_of_syllables();
        // Gemma multiplies what it embeds by sqrt(embedding), and the output is tied there.
        const bool gemma = is("gemma2") || is("gemma3") || is("gemma3n");
        const float root = std::sqrt(float(o_.embedding));
        const float quiet = .25F; // a token says less about its successor than its context does
        w_.words("token_embd.weight", 1, gemma ? quiet / root : quiet);
        if (!gemma && !is("bert")) w_.words("output.weight", 1, 4 / root);
        if (is("lfm2"))
            w_.norm("token_embd_norm.weight", o_.embedding);
        else if (!is("bert"))
            w_.norm("output_norm.weight", o_.embedding, gemma ? 4 / quiet : 1);
        once();
        for (std::uint32_t l = 0; l < layers_; ++l) layer(l);
    }

  private:
    [[nodiscard]] bool is(const char* name) const { return o_.architecture == name; }
    [[nodiscard]] std::uint32_t kv_heads(std::uint32_t l) const { // lfm2: every other layer is recurrent
        return is("deepseek2") ? 1 : is("lfm2") && l % 2 == 0 ? 0 : o_.kv_heads;
    }

    void keys() {
        w_.number("context_length", o_.context);
        w_.number("embedding_length", o_.embedding);
        w_.number("block_count", layers_);
        w_.number("feed_forward_length", o_.hidden);
        w_.number("vocab_size", vocabulary);
        w_.number("attention.head_count", o_.query_heads);
        if (is("lfm2")) {
            std::vector<std::uint32_t> heads;
            for (std::uint32_t l = 0; l < layers_; ++l) heads.push_back(kv_heads(l));
            w_.numbers("attention.head_count_kv", heads);
            w_.number("shortconv.l_cache", 3);
        } else {
            w_.number("attention.head_count_kv", kv_heads(0));
        }
        w_.real(is("mpt") || is("bert") ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                1e-5F);
        w_.real("rope.freq_base", o_.rope_base);
        if (!is("deepseek2")) {
            w_.number("attention.key_length", o_.head_dim);
            w_.number("attention.value_length", o_.head_dim);
            w_.number("rope.dimension_count", o_.head_dim);
        }
        if (is("gemma2") || is("gemma3") || is("gemma3n") || is("gpt-oss"))
            w_.number("attention.sliding_window", o_.window);
        if (is("gemma3"))
            w_.number("attention.sliding_window_pattern",
                      3); // so that few layers have one that does not slide
        if (is("gemma2")) {
            w_.real("attn_logit_softcapping", 5); // low enough to matter
            w_.real("final_logit_softcapping", 30);
        }
        if (is("gpt-oss")) {
            w_.number("expert_count", experts_);
            w_.number("expert_used_count", 2);
            w_.number("expert_feed_forward_length", o_.hidden);
        }
        if (is("mpt")) w_.real("attention.max_alibi_bias", 8);
        if (is("phi3")) w_.number("rope.scaling.original_context_length", o_.context / 4);
        if (is("bert")) {
            w_.flag("attention.causal", false);
            w_.number(".tokenizer.ggml.token_type_count", 2);
        }
        if (is("deepseek2")) {
            w_.number("attention.q_lora_rank", 0);
            w_.number("attention.kv_lora_rank", latent_);
            w_.number("attention.key_length", latent_ + o_.head_dim / 2);
            w_.number("attention.value_length", latent_);
            w_.number("attention.key_length_mla", o_.head_dim);
            w_.number("attention.value_length_mla", o_.head_dim);
            w_.number("rope.dimension_count", o_.head_dim / 2);
            w_.number("leading_dense_block_count", layers_);
            w_.number("expert_feed_forward_length", o_.hidden);
            w_.number("expert_shared_count", 1);
        }
    }

    /// Tensors that are there once.
    void once() {
        const auto n = o_.embedding;
        if (is("phi3")) {
            w_.floats("rope_factors_long.weight", {o_.head_dim / 2}, 4, 0);
            w_.floats("rope_factors_short.weight", {o_.head_dim / 2}, 1, 0);
        }
        if (is("bert")) {
            w_.floats("position_embd.weight", {n, o_.context}, 0, 1);
            w_.floats("token_types.weight", {n, 2}, 0, 1);
            w_.norm("token_embd_norm.weight", n);
            w_.floats("token_embd_norm.bias", {n}, 0, .05F);
        }
        if (is("gemma3n")) {
            w_.experts("altup_proj.weight", n, n, 3, GGML_TYPE_F16);
            w_.experts("altup_unembd_proj.weight", n, n, 3, GGML_TYPE_F16);
            w_.matrix("per_layer_token_embd.weight", 256 * layers_, vocabulary);
            w_.matrix("per_layer_model_proj.weight", n, 256 * layers_);
            w_.norm("per_layer_proj_norm.weight", 256);
        }
    }

    void layer(std::uint32_t l) {
        block_ = "blk." + std::to_string(l) + ".";
        const auto n = o_.embedding;
        if (!is("bert")) w_.norm(named("attn_norm.weight"), n);
        if (is("deepseek2"))
            latent_attention();
        else if (kv_heads(l) == 0)
            convolution();
        else
            attention(l);
        if (is("gemma2") || is("gemma3") || is("gemma3n")) {
            w_.norm(named("post_attention_norm.weight"), n);
            w_.norm(named("post_ffw_norm.weight"), n);
        }
        if (is("gpt-oss"))
            w_.norm(named("post_attention_norm.weight"),
                    n); // what others call the norm of the feed-forward part
        else if (!is("bert"))
            w_.norm(named("ffn_norm.weight"), n);
        if (is("gpt-oss"))
            experts();
        else
            feed_forward();
        if (is("bert")) {
            for (const char* norm : {"attn_output_norm", "layer_output_norm"}) {
                w_.norm(named(norm) + ".weight", n);
                w_.floats(named(norm) + ".bias", {n}, 0, .05F);
            }
        }
        if (is("gemma3n")) alternating();
    }

    void attention(std::uint32_t l) {
        const auto n = o_.embedding;
        const std::uint32_t q = o_.query_heads * o_.head_dim;
        const std::uint32_t kv = kv_heads(l) * o_.head_dim;
        const bool normed = is("qwen3") || is("gemma3") || is("gemma3n") || is("lfm2");
        const bool biased = is("qwen2") || is("gpt-oss");
        const float peak = 1.5F; // of queries and keys: scores have a deviation of about its square
        if (is("mpt")) {
            w_.matrix(named("attn_qkv.weight"), n, q + 2 * kv, peak);
        } else {
            w_.matrix(named("attn_q.weight"), n, q, peak);
            w_.matrix(named("attn_k.weight"), n, kv, peak);
            w_.matrix(named("attn_v.weight"), n, kv);
        }
        if (biased) {
            w_.floats(named("attn_q.bias"), {q}, 0, .25F);
            w_.floats(named("attn_k.bias"), {kv}, 0, .25F);
            w_.floats(named("attn_v.bias"), {kv}, 0, .25F);
        }
        if (normed) {
            w_.norm(named("attn_q_norm.weight"), o_.head_dim, peak);
            w_.norm(named("attn_k_norm.weight"), o_.head_dim, peak);
        }
        w_.matrix(named("attn_output.weight"), q, n, 1.5F);
        if (is("gpt-oss")) {
            w_.floats(named("attn_output.bias"), {n}, 0, .1F);
            w_.floats(named("attn_sinks.weight"), {o_.query_heads}, 2, 1);
        }
    }

    void latent_attention() {
        const auto n = o_.embedding;
        const std::uint32_t half = o_.head_dim / 2; // rotated; the other half is not
        w_.matrix(named("attn_q.weight"), n, o_.query_heads * o_.head_dim, 1.5F);
        w_.matrix(named("attn_kv_a_mqa.weight"), n, latent_ + half);
        w_.norm(named("attn_kv_a_norm.weight"), latent_);
        w_.experts(named("attn_k_b.weight"), half, latent_, o_.query_heads, GGML_TYPE_F16);
        w_.experts(named("attn_v_b.weight"), latent_, o_.head_dim, o_.query_heads, GGML_TYPE_F16);
        w_.matrix(named("attn_output.weight"), o_.query_heads * o_.head_dim, n);
    }

    void convolution() {
        w_.floats(named("shortconv.conv.weight"), {3, o_.embedding}, .3F, .3F);
        w_.matrix(named("shortconv.in_proj.weight"), o_.embedding, 3 * o_.embedding);
        w_.matrix(named("shortconv.out_proj.weight"), o_.embedding, o_.embedding);
    }

    void feed_forward() {
        const auto n = o_.embedding;
        const bool gated = !is("mpt") && !is("bert") && !is("phi3"); // phi3 has both in one
        if (gated) w_.matrix(named("ffn_gate.weight"), n, o_.hidden);
        w_.matrix(named("ffn_up.weight"), n, is("phi3") ? 2 * o_.hidden : o_.hidden);
        w_.matrix(named("ffn_down.weight"), o_.hidden, n);
    }

    void experts() {
        const auto n = o_.embedding;
        const ggml_type type = ggml_is_quantized(o_.type) ? GGML_TYPE_MXFP4 : o_.type;
        w_.floats(named("ffn_gate_inp.weight"), {n, experts_}, 0, 1 / std::sqrt(float(n)));
        w_.floats(named("ffn_gate_inp.bias"), {experts_}, 0, .1F);
        w_.experts(named("ffn_gate_exps.weight"), n, o_.hidden, experts_, type);
        w_.experts(named("ffn_up_exps.weight"), n, o_.hidden, experts_, type);
        w_.experts(named("ffn_down_exps.weight"), o_.hidden, n, experts_, type);
        w_.floats(named("ffn_gate_exps.bias"), {o_.hidden, experts_}, 0, .1F);
        w_.floats(named("ffn_up_exps.bias"), {o_.hidden, experts_}, 0, .1F);
        w_.floats(named("ffn_down_exps.bias"), {n, experts_}, 0, .1F);
    }

    /// Gemma 3n's streams beside the residual one.
    void alternating() {
        const auto n = o_.embedding;
        w_.matrix(named("inp_gate.weight"), n, 256);
        w_.matrix(named("proj.weight"), 256, n);
        w_.norm(named("post_norm.weight"), n);
        w_.floats(named("altup_correct_coef.weight"), {4, 4}, 0, .3F);
        w_.norm(named("altup_correct_scale.weight"), n);
        w_.floats(named("altup_predict_coef.weight"), {4, 16}, 0, .1F);
        w_.floats(named("altup_router.weight"), {n, 4}, 0, 1 / std::sqrt(float(n)));
        w_.norm(named("altup_router_norm.weight"), n);
        w_.matrix(named("laurel_l.weight"), n, 64);
        w_.matrix(named("laurel_r.weight"), 64, n);
        w_.norm(named("laurel_post_norm.weight"), n);
    }

    [[nodiscard]] std::string named(const char* tensor) const { return block_ + tensor; }

    static constexpr std::uint32_t experts_ = 4;
    static constexpr std::uint32_t latent_ = 64;
    writer& w_;
    const options& o_;
    std::uint32_t layers_;
    std::string block_;
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

} // namespace

std::vector<std::string> runnable() {
    return {"llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt-oss"};
}

std::vector<std::string> refused() {
    return {"mpt", "deepseek2", "phi3", "gemma3n", "bert", "lfm2"};
}

options attention_of_1b() {
    options o;
    o.layers = 2;
    o.query_heads = 32;
    o.kv_heads = 8;
    o.head_dim = 64;
    o.context = 131072;
    o.rope_base = 500000;
    return o;
}

bool write(const std::string& path, const options& o) {
    if (!contains(runnable(), o.architecture) && !contains(refused(), o.architecture)) return false;
    writer w(o);
    builder(w, o).build();
    return w.finish(path);
}

} // namespace tiny_models
