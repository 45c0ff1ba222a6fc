// SPDX-License-Identifier: MIT
#include "model_choice.hpp"

#include "error.hpp"

#include <CLI/CLI.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <system_error>

namespace engine {

namespace {

namespace fs = std::filesystem;

constexpr const char* shipped_model = "tiny-2k.gguf";

/// In the sources that the program was built from, or beside the program.
std::string default_model() {
    std::error_code none;
    const std::array<std::string, 2> folders = {
        KVTL_DATA_DIR, fs::read_symlink("/proc/self/exe", none).parent_path().string()};
    return find_file(shipped_model, folders);
}

bool same_file(const std::string& a, const std::string& b) {
    std::error_code none;
    return a == b || fs::equivalent(a, b, none);
}

} // namespace

void define_model(CLI::App& app, std::string& model, const char* what) {
    const auto argument = std::make_shared<std::string>();
    const auto* named =
        app.add_option("-m,--model", model, std::string(what) + "; default: the embedded " + shipped_model);
    const auto* unnamed = app.add_option("MODEL", *argument, "the same as --model MODEL");
    app.parse_complete_callback([&model, argument, named, unnamed] {
        if (unnamed->count() == 0) {
            if (named->count() == 0) model = default_model();
            return;
        }
        if (named->count() > 0 && !same_file(model, *argument))
            throw bad_input("two models: " + *argument + " and -m " + model + "; valid: one of them");
        model = *argument;
    });
}

std::string no_model_message() {
    return std::string("no model: give a GGUF file, alone or with -m; there is no ") + shipped_model +
           " to take instead";
}

std::string find_file(const std::string& name, std::span<const std::string> folders) {
    for (const std::string& folder : folders) {
        std::error_code none;
        const fs::path file = fs::path(folder) / name;
        if (!folder.empty() && fs::is_regular_file(file, none)) return file.string();
    }
    return "";
}

} // namespace engine
