// kvtl-llama-bench: what kvtl changes in llama.cpp, on the same tokens.
//
//   kvtl-llama-bench agree -m model.gguf --policies full,dynakv --attend-tokens 0
//   kvtl-llama-bench cells -m model.gguf --types q8_0,q4_0
//   kvtl-llama-bench hook  -m model.gguf
//   kvtl-llama-bench speed -m model.gguf --policies full,dynakv --attend-tokens 512 --contexts 8192,32768
//
// Exit status: 0, 2 for what can never work, 1 for a run that fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "compare.hpp"
#include "error.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace {

constexpr const char* program = "kvtl-llama-bench";

void print(const nlohmann::ordered_json& rows, const std::string& json_file) {
    if (!json_file.empty()) engine::write_output(json_file, rows.dump(1));
    if (json_file == "-") return;
    for (const auto& row : rows) {
        for (const auto& [key, value] : row.items())
            std::printf("%s%s %s", key == row.items().begin().key() ? "" : "  ", key.c_str(),
                        value.dump().c_str());
        std::printf("\n");
    }
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        llama_bench::options o;
        llama_bench::agree_options a;
        llama_bench::cell_options c;
        llama_bench::speed_options s;
        a.prose_file = c.prose_file = KVTL_PROSE_FILE;
        std::string json_file;
        std::vector<std::string> settings;
        CLI::App app("llama.cpp with its cache in kvtl beside llama.cpp as it is.", program);
        app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
        app.require_subcommand(1);
        app.fallthrough();
        app.add_option("-m,--model", o.model, "GGUF file")->required();
        app.add_option("--policies", o.policies, "presets, separated by commas")
            ->delimiter(',')
            ->capture_default_str();
        app.add_option("--attend-tokens", o.attend_tokens, "entries each head attends per step; 0: all")
            ->check(engine::whole_number)
            ->capture_default_str();
        app.add_option("--memory-mib", o.memory_mib, "memory of each cache in MiB")->capture_default_str();
        app.add_option("--io", o.io, "uring, posix or memory")->capture_default_str();
        app.add_option("--folder", o.folder, "of cache files")->capture_default_str();
        app.add_option("--threads", o.threads, "threads of llama.cpp and of the cache")
            ->check(engine::whole_number)
            ->capture_default_str();
        app.add_option("--batch", o.batch, "tokens of one pass, and cells where kvtl keeps the cache")
            ->check(engine::whole_number)
            ->capture_default_str();
        app.add_option("--set", settings, "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable)");
        app.add_option("--json", json_file, "write the rows as JSON; - for standard output");
        auto* agree = app.add_subcommand("agree", "the same tokens, and as many answers?");
        agree->add_option("--task", a.task, "questions: needle:FILE.jsonl or needle:gen[,...]")
            ->capture_default_str();
        agree->add_option("--limit", a.limit, "most questions; 0: all")->check(engine::whole_number);
        auto* cells = app.add_subcommand("cells", "what does llama.cpp lose with cells of fewer bits?");
        cells->add_option("--task", c.tasks, "as kvtl-eval has (repeatable)")->capture_default_str();
        cells->add_option("--types", c.types, "of its keys and values, separated by commas")
            ->delimiter(',')
            ->capture_default_str();
        cells->add_option("--limit", c.limit, "most examples of a task; 0: all")->check(engine::whole_number);
        auto* speed = app.add_subcommand("speed", "how fast are prompts and steps?");
        speed->add_option("--contexts", s.contexts, "tokens, separated by commas")
            ->delimiter(',')
            ->check(engine::whole_number)
            ->capture_default_str();
        auto* hook = app.add_subcommand("hook", "what does the hook itself take?");
        for (auto* command : {speed, hook}) {
            command->add_option("--steps", s.steps, "of one engine before the next has its turn")
                ->check(engine::whole_number)
                ->capture_default_str();
            command->add_option("--rounds", s.rounds, "turns of each")
                ->check(engine::whole_number)
                ->capture_default_str();
        }
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        engine::require(o.threads >= 1 && o.threads <= 256, "--threads: valid: 1 to 256");
        engine::require(o.batch >= 1 && o.batch <= 1U << 20, "--batch: valid: 1 to 1048576");
        engine::require(o.memory_mib > 0 && o.memory_mib <= 1 << 24,
                        "--memory-mib: valid: more than 0, up to 16777216");
        engine::require_io(o.io);
        for (const auto& policy : o.policies) engine::require_policy(policy, "--policies");
        for (const auto& text : settings) o.settings.push_back(engine::parse_setting(text));
        engine::require_running(o.settings, o.policies);
        engine::require(s.steps >= 1 && s.steps <= 1U << 20, "--steps: valid: 1 to 1048576");
        engine::require(s.rounds >= 1 && s.rounds <= 1U << 20, "--rounds: valid: 1 to 1048576");
        for (const std::size_t context : s.contexts)
            engine::require(context >= 1 && context <= 1U << 24, "--contexts: valid: 1 to 16777216");
        engine::require_writable(json_file, "--json");
        print(agree->parsed()   ? llama_bench::agree(o, a)
              : cells->parsed() ? nlohmann::ordered_json::parse(llama_bench::cells(o, c))
              : hook->parsed()  ? llama_bench::hook(o, s)
                                : llama_bench::speed(o, s),
              json_file);
        return 0;
    });
}
