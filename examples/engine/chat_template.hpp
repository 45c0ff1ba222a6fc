// What is said in a conversation, as models of the two most common chat templates read it. A GGUF file holds its template as
// a program in a language of its own, which is not run here; it is recognised by the names of its control tokens.
// SPDX-License-Identifier: MIT
#pragma once

#include "chat_engine.hpp"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace engine {

/// ChatML (Qwen and many others) or Llama 3's; nothing for another template. `for_answer`: up to where the answer begins.
[[nodiscard]] std::optional<std::string> render_chat(std::string_view chat_template,
                                                     std::span<const message> messages, bool for_answer);

} // namespace engine
