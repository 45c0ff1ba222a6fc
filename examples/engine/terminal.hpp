// -i of kvtl-run and kvtl-llama: a conversation in the terminal, or through a pipe.
// SPDX-License-Identifier: MIT
#pragma once

#include "conversation.hpp"

#include <optional>
#include <string>

namespace engine {

struct terminal_options {
    generate_options generate;
    std::optional<std::string> first; ///< what the user says first, before anything is typed
    bool stream = true;               ///< answers go to standard output
};

/// Until the input ends. Ctrl-C stops an answer, and at the prompt ends the program. Throws run_failure.
[[nodiscard]] std::vector<answer> converse(chat_engine& e, const terminal_options& o, const char* program);

} // namespace engine
