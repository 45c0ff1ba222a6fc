// The command that made a row, as rows keep it.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace kvtl_bench {

/// Without --json and its file, which say nothing about the rows.
inline std::string command_of(std::string command, int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--json") ++i;
        if (!word.starts_with("--json")) (command += ' ') += word;
    }
    return command;
}

} // namespace kvtl_bench
