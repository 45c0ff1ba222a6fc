// What a program saves beside the cache's entries, so that a text goes on tomorrow: its tokens, where the sampler was, and of
// a conversation what was said.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved.hpp>

#include "chat_engine.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace engine {

/// A text so far.
struct saved_text {
    std::vector<token_id>
        tokens; ///< all of it; the cache may hold fewer, as the last one chosen has not been fed back
    std::string sampler;           ///< state of its random numbers
    std::vector<message> messages; ///< of a conversation, else none

    /// The note of a saved sequence.
    [[nodiscard]] std::vector<std::byte> note() const;
};

/// A saved sequence that has been looked into.
struct saved_state {
    saved_text text;
    kvtl::save_facts facts;

    /// Tokens that the cache does not hold.
    [[nodiscard]] std::span<const token_id> unread() const {
        return std::span(text.tokens).subspan(facts.tokens);
    }
};
/// Reads what stands beside the entries. Throws bad_input, also where another program saved the file.
[[nodiscard]] saved_state look_into_state(const std::string& path);

} // namespace engine
