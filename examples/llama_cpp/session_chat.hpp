// A conversation's engine over llama.cpp: the first sequence of a session.
// SPDX-License-Identifier: MIT
#pragma once

#include "chat_engine.hpp"
#include "session.hpp"

#include <optional>
#include <string>

namespace llama_run {

class session_chat final : public engine::chat_engine {
  public:
    /// The session must outlive it. `model` is the number that saved files have of the model.
    explicit session_chat(session& s, std::uint64_t model = 0);

    [[nodiscard]] std::vector<token_id> encode(std::string_view text, bool begin,
                                               bool control) const override;
    [[nodiscard]] std::string piece(token_id id) const override { return session_.model().piece(id); }
    [[nodiscard]] bool is_end(token_id id) const override { return session_.model().is_end(id); }
    [[nodiscard]] std::optional<std::string> render(std::span<const engine::message> messages,
                                                    bool for_answer) const override {
        return session_.model().render(messages, for_answer);
    }

    [[nodiscard]] std::size_t max_tokens() const override { return session_.max_tokens(); }
    [[nodiscard]] std::size_t chunk() const override { return session_.batch(); }
    void read(std::span<const token_id> tokens, bool last) override;
    [[nodiscard]] std::span<const float> logits() override { return session_.logits(batch_.size() - 1); }
    [[nodiscard]] bool rewind(std::size_t position) override { return session_.rewind(0, position); }
    void end() override { session_.end(0); }
    kvtl::save_facts save(const std::string& path, std::span<const std::byte> note) override {
        return session_.save(0, path, {.model = model_, .note = note});
    }
    kvtl::loaded_sequence load(const std::string& path) override {
        return session_.load(0, path, {.model = model_});
    }
    [[nodiscard]] engine::cache_stats stats() const override { return session_.stats(); }

  private:
    session& session_;
    token_batch batch_;
    std::uint64_t model_;
};

} // namespace llama_run
