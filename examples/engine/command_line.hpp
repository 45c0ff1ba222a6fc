// How every program reads its arguments: what --help, --version and --completion do, and one line about what is wrong, with
// the option or command that was probably meant.
// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11 calls it that
class App;
}

namespace engine {

/// The exit status where the program ends here: 0 behind --help, --version and --completion bash, 2 behind bad usage. Else nothing, and the
/// options have their values. Callbacks of the options may throw bad_input.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv);

} // namespace engine
