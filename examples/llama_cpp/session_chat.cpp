// SPDX-License-Identifier: MIT
#include "session_chat.hpp"

namespace llama_run {

session_chat::session_chat(session& s)
    : session_(s), template_(s.model().chat_template()), batch_(s.batch()) {}

std::vector<token_id> session_chat::encode(std::string_view text, bool begin, bool control) const {
    return session_.model().encode(text, begin, control);
}

std::optional<std::string> session_chat::render(std::span<const engine::message> messages,
                                                bool for_answer) const {
    if (template_.empty()) return std::nullopt;
    std::vector<llama_chat_message> chat;
    std::size_t length = 256;
    for (const engine::message& m : messages) {
        chat.push_back({m.role.c_str(), m.text.c_str()});
        length += 2 * m.text.size() + 64;
    }
    std::string out;
    for (int attempt = 0; attempt < 2; ++attempt) {
        out.assign(length, '\0');
        const std::int32_t n =
            llama_chat_apply_template(template_.c_str(), chat.data(), chat.size(), for_answer, out.data(),
                                      static_cast<std::int32_t>(out.size()));
        if (n < 0) return std::nullopt;
        if (static_cast<std::size_t>(n) <= length) {
            out.resize(static_cast<std::size_t>(n));
            return out;
        }
        length = static_cast<std::size_t>(n);
    }
    return std::nullopt;
}

void session_chat::read(std::span<const token_id> tokens, bool last) {
    const std::size_t held = session_.held(0);
    batch_.clear();
    for (std::size_t t = 0; t < tokens.size(); ++t)
        batch_.add(tokens[t], held + t, 0, last && t + 1 == tokens.size());
    session_.decode(batch_);
}

} // namespace llama_run
