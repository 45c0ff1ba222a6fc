// Completion of a program's arguments by bash, made from the options that the program really has.
//
//   eval "$(kvtl-run --completion bash)"
//
// The build writes one file per program, which the install rules put where bash-completion looks for them.
// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11 calls it that
class App;
}

namespace engine {

/// A script that defines a function and tells bash to call it for the program `app` is named for: long and short options, of
/// the command where there is one; behind --policy and --policies what the program lists, behind --io and --device their
/// names; file names elsewhere.
[[nodiscard]] std::string bash_completion(const CLI::App& app);

} // namespace engine
