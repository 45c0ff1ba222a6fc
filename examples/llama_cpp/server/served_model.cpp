// SPDX-License-Identifier: MIT
#include "served_model.hpp"

namespace kvtl_server {

std::vector<token_id> served_model::chat(std::span<const engine::message> messages) const {
    if (const auto text = model_.render(messages, true)) return prompt(*text);
    std::string text;
    for (const engine::message& m : messages) {
        if (!text.empty() && m.role != "assistant") text += '\n';
        text += m.text;
    }
    return model_.encode(text, true, false);
}

} // namespace kvtl_server
