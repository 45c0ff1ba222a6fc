// Texts that were read and generated lately, by their tokens and by space.
//
// Two uses. A prompt that begins like another one may share its cache: shared() says how far. And a client sends an answer back
// as text, which a tokenizer may cut into other tokens than those that the model chose: as_said() gives the prompt the tokens
// of the conversation that its text goes on from, or nothing of that conversation would match.
//
// Memory: 4 bytes for each token, up to `most` tokens, of which each text counts `cost_of_a_text` more; the oldest texts leave.
// Cost:   linear in what is remembered.
// SPDX-License-Identifier: MIT
#pragma once

#include "session.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvtl_server {

using llama_run::token_id;

/// Tokens with which both begin.
[[nodiscard]] std::size_t common_beginning(std::span<const token_id> a, std::span<const token_id> b);

class recent_texts {
  public:
    static constexpr std::size_t cost_of_a_text = 64; ///< tokens: its space, and what a container needs

    explicit recent_texts(std::size_t most) : most_(most) {}

    /// Takes the place of texts that it begins with.
    void remember(const std::string& space, std::vector<token_id> tokens);

    /// Tokens of the longest beginning that a prompt has in common with a text.
    [[nodiscard]] std::size_t shared(const std::string& space, std::span<const token_id> prompt) const;

    /// The bytes of a token, control tokens by their names.
    using spelling = std::function<std::string(token_id)>;
    /// The prompt in the tokens of the longest text that it begins with, up to the last boundary between tokens that both have.
    [[nodiscard]] std::vector<token_id> as_said(const std::string& space, std::span<const token_id> prompt,
                                                const spelling& piece) const;

  private:
    struct text {
        std::string space;
        std::vector<token_id> tokens;
    };
    std::size_t most_;
    std::deque<text> texts_; ///< the latest in front
    std::size_t tokens_ = 0; ///< of all, with their costs
};

} // namespace kvtl_server
