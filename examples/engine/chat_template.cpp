// SPDX-License-Identifier: MIT
#include "chat_template.hpp"

namespace engine {

namespace {

/// What stands around the role and around the text of a message.
struct marks {
    std::string_view before_role, before_text, behind_text;
};

std::optional<marks> marks_of(std::string_view chat_template) {
    const auto names = [&](std::string_view token) {
        return chat_template.find(token) != std::string_view::npos;
    };
    if (names("<|im_start|>")) return marks{"<|im_start|>", "\n", "<|im_end|>\n"};
    if (names("<|start_header_id|>"))
        return marks{"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"};
    return std::nullopt;
}

} // namespace

std::optional<std::string> render_chat(std::string_view chat_template, std::span<const message> messages,
                                       bool for_answer) {
    const auto m = marks_of(chat_template);
    if (!m) return std::nullopt;
    std::string text;
    const auto begin = [&](std::string_view role) {
        text.append(m->before_role).append(role).append(m->before_text);
    };
    for (const message& said : messages) {
        begin(said.role);
        text.append(said.text).append(m->behind_text);
    }
    if (for_answer) begin("assistant");
    return text;
}

} // namespace engine
