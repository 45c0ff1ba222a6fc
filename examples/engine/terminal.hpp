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
    std::string load_state;           ///< what it goes on from; "": nothing
    std::string save_state;           ///< where it is saved at its end; "": nowhere
};

/// Until the input ends; then the answers and the states are in `report`. Ctrl-C stops an answer, and at the prompt ends the
/// conversation. With save_state so do SIGTERM and SIGHUP, at any moment. Throws bad_input, run_failure.
void converse(chat_engine& e, const terminal_options& o, const char* program, run_report& report);

} // namespace engine
