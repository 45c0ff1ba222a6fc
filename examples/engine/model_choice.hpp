// Which model a program is to run: -m FILE, or the one argument without a name, or the model that ships with the sources.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11 calls it that
class App;
}

namespace engine {

/// Options of a program for `model`, which parsing sets; "" where none is given and none ships. `what` says which files it
/// takes. Parsing throws bad_input where -m and the argument name different files.
void define_model(CLI::App& app, std::string& model, const char* what);

/// Of a program that has a model by default: "no model ..." for check() to say.
[[nodiscard]] std::string no_model_message();

/// The file of that name in the first folder that has one; "" where none does.
[[nodiscard]] std::string find_file(const std::string& name, std::span<const std::string> folders);

} // namespace engine
