// SPDX-License-Identifier: MIT
#include "command_line.hpp"

#include "completion.hpp"
#include "program.hpp"
#include "suggestion.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

namespace {

/// What could have been written in place of an unknown argument: long options, of the command where there is one, or
/// commands.
std::vector<std::string> possible(const CLI::App& app, bool options) {
    std::vector<std::string> names;
    if (!options) {
        for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
        return names;
    }
    const auto commands = app.get_subcommands(); // those that were given
    const CLI::App& within = commands.empty() ? app : *commands.front();
    for (const CLI::Option* option : within.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

/// "; did you mean '--policy'?", or nothing.
std::string suggestion_for(const CLI::App& app) {
    for (const std::string& argument : app.remaining(true)) {
        const std::string name = argument.substr(0, argument.find('='));
        const auto names = possible(app, name.starts_with('-'));
        const auto meant = nearest(name, names);
        if (!meant.empty()) return "; did you mean '" + std::string(meant) + "'?";
    }
    return "";
}

} // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
    if (argc == 3 &&
        std::string_view(argv[1]) == "--completion") { // before what an app requires of its arguments
        if (std::string_view(argv[2]) != "bash")
            return fail(app.get_name().c_str(), 2,
                        "--completion: unknown shell '" + std::string(argv[2]) + "'; valid: bash");
        std::fputs(bash_completion(app).c_str(), stdout);
        return 0;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::Success& e) { // --help, --version
        return app.exit(e);
    } catch (const CLI::ExtrasError& e) {
        return fail(app.get_name().c_str(), 2, e.what() + suggestion_for(app));
    } catch (const CLI::ParseError& e) {
        return fail(app.get_name().c_str(), 2, e.what());
    }
    return std::nullopt;
}

} // namespace engine
