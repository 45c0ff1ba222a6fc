// A GGUF model in llama.cpp, with its KV cache in kvtl or, for comparisons, in llama.cpp's own cells.
//
//   llama_run::loaded_model model("model.gguf");
//   llama_run::session session(model, {...});
//   session.decode(batch);              // throws run_failure
//   session.logits(i)                   // of the i-th token of the batch
//
// What fails while it is set up is bad_input, with the library's sentence; what fails later is run_failure.
// SPDX-License-Identifier: MIT
#pragma once

#include "chat_engine.hpp"
#include "ggml_threads.hpp"
#include "kvtl_llama.hpp"
#include "recording_cache.hpp"
#include "sampler.hpp"

#include <llama.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama_run {

using engine::token_id;

/// Weights, mapped from the file, and vocabulary.
class loaded_model {
  public:
    /// Throws bad_input.
    explicit loaded_model(const std::string& file);

    [[nodiscard]] llama_model* get() const noexcept { return model_.get(); }
    [[nodiscard]] std::size_t trained_context() const noexcept;
    [[nodiscard]] unsigned kv_heads() const noexcept; ///< at least 1
    [[nodiscard]] std::size_t vocabulary() const noexcept;
    [[nodiscard]] bool is_end(token_id id) const noexcept;

    /// `begin` puts the beginning of a text in front where the model wants one; `control` reads the names of control
    /// tokens as those.
    [[nodiscard]] std::vector<token_id> encode(std::string_view text, bool begin, bool control) const;
    /// Its text; of control tokens "", or their names with `control`.
    [[nodiscard]] std::string piece(token_id id, bool control = false) const;

    /// By llama.cpp, which has the chat templates of many models, not all; nothing where the file has none or another.
    [[nodiscard]] std::optional<std::string> render(std::span<const engine::message> messages,
                                                    bool for_answer) const;

  private:
    struct freed {
        void operator()(llama_model* m) const { llama_model_free(m); }
    };
    std::unique_ptr<llama_model, freed> model_;
    const llama_vocab* words_ = nullptr;
    std::string template_; ///< of chats; "" where the file has none
};

/// The tokens of one llama_decode.
class token_batch {
  public:
    explicit token_batch(std::size_t most);
    ~token_batch() { llama_batch_free(batch_); }
    token_batch(const token_batch&) = delete;
    token_batch& operator=(const token_batch&) = delete;

    void clear() noexcept { batch_.n_tokens = 0; }
    void add(token_id id, std::size_t position, unsigned sequence, bool logits) noexcept;
    [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(batch_.n_tokens); }
    [[nodiscard]] std::size_t room() const noexcept { return most_ - size(); }
    [[nodiscard]] const llama_batch& get() const noexcept { return batch_; }

  private:
    std::size_t most_;
    llama_batch batch_;
};

struct session_options {
    bool plain = false;                  ///< without kvtl
    ggml_type cell_type = GGML_TYPE_F16; ///< of llama.cpp's own keys and values, where there is no kvtl
    unsigned threads = 2;
    std::uint32_t sequences = 1;
    std::uint32_t batch = 512;
    std::uint32_t cells = 0;    ///< 0: one batch
    std::size_t max_tokens = 0; ///< of a sequence
    bool keep_file = false;
    bool least_memory = false; ///< find out least() and open nothing: no other call of the session works
    std::string trace_file;    ///< q, k and v of the first sequence go there; "": nowhere
    std::string tuned_file;    ///< settings of kvswap, for the shape that llama.cpp shows; "": none
    engine::cache_options cache;
};

class session {
  public:
    /// Throws bad_input.
    session(const loaded_model& model, const session_options& o, const char* program);

    void decode(const token_batch& batch);
    [[nodiscard]] std::span<const float> logits(std::size_t token) const;

    /// Gives up the tokens from `position` on; false where that cannot be and nothing has changed.
    [[nodiscard]] bool rewind(unsigned sequence, std::size_t position);
    void end(unsigned sequence);

    /// To a file, and from one; of a session with kvtl. Throws run_failure, or bad_input where the file is no such one.
    kvtl::save_facts save(unsigned sequence, const std::string& path, const kvtl::save_options& o);
    kvtl::loaded_sequence load(unsigned sequence, const std::string& path, const kvtl::load_options& o);

    /// For who keeps sequences elsewhere: the cache, its name of a sequence, and a sequence of it in place of one that was ended.
    /// Of a session with kvtl. Throws run_failure.
    [[nodiscard]] engine::kv_cache& cache() noexcept { return attachment_->cache(); }
    [[nodiscard]] kvtl::sequence_id name_of(unsigned sequence) const;
    void adopt(unsigned sequence, kvtl::sequence_id id, std::size_t tokens);

    /// Completes the trace, where there is one. Throws run_failure.
    void finish_trace();

    [[nodiscard]] std::size_t held(unsigned sequence) const noexcept;
    [[nodiscard]] engine::cache_stats stats() const;
    /// Of the layers with attention. Not of a plain session.
    [[nodiscard]] const kvtl::shape& shape() const noexcept { return attachment_->facts().shape; }
    /// Of a session that was to find it out.
    [[nodiscard]] const kvtl::result<engine::memory_use>& least() const noexcept { return least_; }
    [[nodiscard]] std::size_t cells() const noexcept { return llama_n_ctx(context_.get()); }
    [[nodiscard]] std::size_t max_tokens() const noexcept { return max_tokens_; }
    [[nodiscard]] std::size_t batch() const noexcept { return llama_n_batch(context_.get()); }
    [[nodiscard]] bool one_sequence_per_batch() const noexcept; ///< a hybrid model's rule
    [[nodiscard]] const loaded_model& model() const noexcept { return model_; }

  private:
    void begin_plain(const session_options& o);
    void begin_kvtl(const session_options& o, const char* program);
    [[nodiscard]] kvtl::status try_kvtl(const session_options& o, const engine::cache_options& cache);

    struct freed {
        void operator()(llama_context* c) const { llama_free(c); }
    };
    const loaded_model& model_;
    std::size_t max_tokens_ = 0;
    kvtl_llama::detail::ggml_threads workers_;     ///< of a plain one
    std::unique_ptr<engine::kv_cache> recorded_;   ///< below the recording, where there is one
    engine::recording_cache* recording_ = nullptr; ///< the attachment's
    std::optional<kvtl_llama::attachment> attachment_;
    std::unique_ptr<llama_context, freed> context_; ///< goes first: it computes with both
    std::string why_not_;
    kvtl::result<engine::memory_use> least_ = engine::memory_use{};
    std::vector<std::size_t> plain_held_;
};

/// What the project's own engine would call a model, for bases that ship with it; 0 for what it cannot read.
[[nodiscard]] std::uint64_t shipped_fingerprint(const std::string& file);

/// VmHWM: the most that the process has had in memory, mapped weights included.
[[nodiscard]] std::uint64_t process_resident_bytes_peak();

} // namespace llama_run
