// What a conversation asks of an engine: a vocabulary, a template for what is said, and one sequence of tokens that grows and
// may be cut back. kvtl-run and kvtl-llama each have one.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "tokenizer.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

/// Something that was said: by the "user" or the "assistant".
struct message {
    std::string role, text;
};

class chat_engine {
  public:
    chat_engine() = default;
    virtual ~chat_engine() = default;
    chat_engine(const chat_engine&) = delete;
    chat_engine& operator=(const chat_engine&) = delete;

    /// `begin` puts the beginning of a text in front where the model wants one; `control` reads the names of control
    /// tokens as those.
    [[nodiscard]] virtual std::vector<token_id> encode(std::string_view text, bool begin,
                                                       bool control) const = 0;
    [[nodiscard]] virtual std::string piece(token_id id) const = 0; ///< "" for control tokens
    [[nodiscard]] virtual bool is_end(token_id id) const = 0;

    /// The messages as the model was trained to read them, up to where an answer begins `for_answer`; nothing where the
    /// model has no template, or none that is known.
    [[nodiscard]] virtual std::optional<std::string> render(std::span<const message> messages,
                                                            bool for_answer) const = 0;

    [[nodiscard]] virtual std::size_t max_tokens() const = 0; ///< of the sequence
    [[nodiscard]] virtual std::size_t chunk() const = 0;      ///< most tokens of one read()

    /// Appends tokens; `last` where logits behind the last of them are wanted. Throws run_failure.
    virtual void read(std::span<const token_id> tokens, bool last) = 0;
    /// Behind what was read last; valid until the next call.
    [[nodiscard]] virtual std::span<const float> logits() = 0;

    /// Gives up the tokens from `position` on; false where that cannot be and nothing has changed.
    [[nodiscard]] virtual bool rewind(std::size_t position) = 0;
    /// Gives up all tokens.
    virtual void end() = 0;

    /// Writes the tokens' cache, with a note, to a file; there is at least one token. Throws run_failure.
    virtual kvtl::save_facts save(const std::string& path, std::span<const std::byte> note) = 0;
    /// What was saved to a file becomes the sequence, in place of one without tokens. Throws bad_input.
    virtual kvtl::loaded_sequence load(const std::string& path) = 0;

    [[nodiscard]] virtual cache_stats stats() const = 0;
};

} // namespace engine
