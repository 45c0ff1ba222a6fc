// A conversation's engine over the project's own transformer: the sequence is the one that the transformer has begun.
// SPDX-License-Identifier: MIT
#pragma once

#include "chat_engine.hpp"
#include "transformer.hpp"

#include <string>

namespace engine {

class transformer_chat final : public chat_engine {
  public:
    /// All three must outlive it. `chat_template` is the file's, or "". A chunk is what the cache sees of a message at once.
    /// `model` is the number that saved files have of the model (fingerprint.hpp).
    transformer_chat(transformer& t, const tokenizer& words, kv_cache& cache, std::string chat_template,
                     std::size_t max_tokens, std::size_t chunk, std::uint64_t model = 0);

    [[nodiscard]] std::vector<token_id> encode(std::string_view text, bool begin,
                                               bool control) const override;
    [[nodiscard]] std::string piece(token_id id) const override { return words_.piece(id); }
    [[nodiscard]] bool is_end(token_id id) const override { return words_.is_end(id); }
    [[nodiscard]] std::optional<std::string> render(std::span<const message> messages,
                                                    bool for_answer) const override;

    [[nodiscard]] std::size_t max_tokens() const override { return max_tokens_; }
    [[nodiscard]] std::size_t chunk() const override { return chunk_; }
    void read(std::span<const token_id> tokens, bool last) override;
    [[nodiscard]] std::span<const float> logits() override { return logits_; }
    [[nodiscard]] bool rewind(std::size_t position) override;
    void end() override { begun_ = false; }
    kvtl::save_facts save(const std::string& path, std::span<const std::byte> note) override;
    kvtl::loaded_sequence load(const std::string& path) override;
    [[nodiscard]] cache_stats stats() const override { return cache_.stats(); }

  private:
    transformer& transformer_;
    const tokenizer& words_;
    kv_cache& cache_;
    std::string template_;
    std::size_t max_tokens_, chunk_;
    std::uint64_t model_;
    std::span<const float> logits_;
    bool begun_ = false;
};

} // namespace engine
