// SPDX-License-Identifier: MIT
#include "session_chat.hpp"

namespace llama_run {

session_chat::session_chat(session& s, std::uint64_t model) : session_(s), batch_(s.batch()), model_(model) {}

std::vector<token_id> session_chat::encode(std::string_view text, bool begin, bool control) const {
    return session_.model().encode(text, begin, control);
}

void session_chat::read(std::span<const token_id> tokens, bool last) {
    const std::size_t held = session_.held(0);
    batch_.clear();
    for (std::size_t t = 0; t < tokens.size(); ++t)
        batch_.add(tokens[t], held + t, 0, last && t + 1 == tokens.size());
    session_.decode(batch_);
}

} // namespace llama_run
