// SPDX-License-Identifier: MIT
#include "completion.hpp"

#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string_view>
#include <vector>

namespace engine {

namespace {

/// "--policy -p --json ...", in the order of --help.
std::string options_of(const CLI::App& app) {
    std::string words;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group().empty()) continue; // hidden
        for (const auto& name : option->get_lnames()) words += (words.empty() ? "--" : " --") + name;
        for (const auto& name : option->get_snames()) words += (words.empty() ? "-" : " -") + name;
    }
    return words;
}

template <class Names> std::string joined(const Names& names) {
    std::string words;
    for (const auto name : names) words += (words.empty() ? "" : " ") + std::string(name);
    return words;
}

} // namespace

std::string bash_completion(const CLI::App& app) {
    const std::string& program = app.get_name();
    std::string function = "_" + program;
    std::replace(function.begin(), function.end(), '-', '_');
    std::string text =
        "# Completion of " + program + ", written by " + program + " --completion bash.\n" + function;
    text += R"bash(() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= list=
    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]} # bash takes --io=uring for three words
    [[ $word == = ]] && word=
    COMPREPLY=()
    case $before in
    --policy) words=$("$1" --list-policies 2>/dev/null) ;;
    --policies) # the last of a list
        [[ $word == *,* ]] && list=${word%,*},
        words="all $("$1" --list-policies 2>/dev/null)" ;;
)bash";
    text += "    --io) words='" + joined(io_names) + "' ;;\n    --device) words='" + joined(device_names()) +
            "' ;;\n";
    text += "    *)\n        [[ $word == -* ]] && case ${COMP_WORDS[1]} in\n";
    std::vector<std::string_view> commands;
    for (const CLI::App* command : app.get_subcommands(nullptr)) {
        commands.push_back(command->get_name());
        text += "        " + command->get_name() + ") words='" + options_of(*command) + "' ;;\n";
    }
    text += "        *) words='" + options_of(app) + "' ;;\n        esac\n";
    if (!commands.empty())
        text += "        [[ $word != -* && COMP_CWORD -eq 1 ]] && words='" + joined(commands) + "'\n";
    text += R"bash(        ;;
    esac
    [[ -z $words ]] && return # file names
    mapfile -t COMPREPLY < <(compgen -P "$list" -W "$words" -- "${word#"$list"}")
}
complete -o bashdefault -o default -F )bash";
    return text + function + " " + program + "\n";
}

} // namespace engine
