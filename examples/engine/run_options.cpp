// SPDX-License-Identifier: MIT
#include "run_options.hpp"

#include <kvtl/save/saved_file.hpp>
#include <kvtl/version.hpp>

#include "error.hpp"
#include "input_file.hpp"
#include "model_choice.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <filesystem>
#include <utility>

namespace engine {

run_options::run_options() : kv_path("./kvtl-" + std::to_string(::getpid()) + ".kv") {}

void define_cache_options(CLI::App& app, run_options& o) {
    app.add_option("--policy", o.policy, "preset that keeps the cache")->capture_default_str();
    app.add_flag("--list-policies", o.list_policies, "print the presets that are built in");
    app.add_option("--set", o.settings, "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable)")
        ->allow_extra_args(false);
    app.add_option("--attend-tokens", o.attend_tokens, "entries each head attends per step")
        ->capture_default_str();
    app.add_option("--keep-tokens", o.keep_tokens,
                   "entries per head that survive where the policy evicts; 0: as many as are attended");
    app.add_option("--memory-mib", o.memory_mib, "memory of the cache in MiB")->capture_default_str();
    app.add_option("--kv-path", o.kv_path, "file of the cache (default ./kvtl-PID.kv)");
    app.add_option("--io", o.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", o.threads, "threads of the engine")->capture_default_str();
    app.add_option("--shards", o.shards,
                   "parts of the cache that work concurrently (default: 2, at most KV heads)");
    app.add_option("--prefill-chunk", o.prefill_chunk,
                   "tokens per pass of the prompt (default: 512, all where the policy evicts at its end)");
    app.add_option("--calibration", o.calibration,
                   "bases for policies that need them (default: the model's name with .cal, if it is there)");
    app.add_option("--gates", o.gates,
                   "file of gates for policies that need them (default: what ships with the model)");
    app.add_option("--votes", o.votes,
                   "file of the heads that retrieve and of layers' importance, for policies that use them "
                   "(kvtl-calibrate --votes "
                   "writes one; default: all vote)");
}

void define_run_options(CLI::App& app, run_options& o, const char* program, const char* models) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    define_model(app, o.model, models);
    auto* prompt = app.add_option("-p,--prompt", o.prompt, "the prompt");
    app.add_option("-f,--file", o.prompt_file, "read the prompt from a file; - for standard input")
        ->excludes(prompt);
    app.add_option("-n,--predict", o.generate.predict,
                   "most tokens to generate; as many as the context has room for")
        ->capture_default_str();
    app.add_option("--temp", o.generate.temperature, "temperature; 0 takes the best token")
        ->capture_default_str();
    app.add_option("--seed", o.generate.seed, "of the sampling")->capture_default_str();
    app.add_flag("--ignore-eos", o.generate.ignore_end, "go on behind the end of the text");
    app.add_option("--logits", o.generate.top_logits, "put the N highest logits of each step into the JSON");
    define_cache_options(app, o);
    const auto has_name = [](const std::string& path) { // an unset variable of a script
        return path.empty() ? std::string("the path is empty; name a file") : std::string();
    };
    app.add_option(
           "--save-state", o.save_state,
           "write the text, or the conversation, and its cache to a file at the end, to go on from later")
        ->check(has_name);
    app.add_option("--load-state", o.load_state,
                   "go on from such a file; -p and -f then say what comes next, and may be left out")
        ->check(has_name);
    app.add_option("--json", o.json_file, "write the result as JSON; - for standard output");
}

void finish_options(CLI::App& app, const std::vector<const char*>& whole_numbers) {
    for (const char* name : {"--predict", "--seed", "--logits", "--attend-tokens", "--keep-tokens",
                             "--threads", "--shards", "--prefill-chunk"})
        if (auto* option = app.get_option_no_throw(name)) option->check(whole_number);
    for (const char* name : whole_numbers) app.get_option(name)->check(whole_number);
    for (auto* option : app.get_options()) // the last one counts, as shells' aliases expect
        if (option->get_name() != "--set") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void check_run_options(const run_options& o) {
    require(o.generate.temperature >= 0 && o.generate.temperature <= 1000, "--temp: valid: 0 to 1000");
    require(o.memory_mib > 0 && o.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(o.attend_tokens > 0, "--attend-tokens: valid: 1 or more");
    require(o.prefill_chunk != std::size_t{0}, "--prefill-chunk: valid: 1 or more");
    require(o.threads >= 1 && o.threads <= 256, "--threads: valid: 1 to 256");
    require(o.shards <= 256, "--shards: valid: 1 to 256");
    require_io(o.io);
    require(!o.kv_path.empty() || o.io == "memory", "--kv-path: the path is empty");
    require_policy(o.policy, "--policy");
    require_writable(o.json_file, "--json"); // the run may take long: find out now that it cannot
}

void check_save_state(const run_options& o) {
    if (o.save_state.empty()) return;
    const auto place = [](const std::string& path) {
        return std::filesystem::absolute(path).lexically_normal();
    };
    require(o.io == "memory" || place(o.save_state) != place(o.kv_path),
            "--save-state: --kv-path names the same file; name another one");
    const auto file =
        kvtl::saved_file::create(o.save_state); // the run may take long: find out now that it cannot be kept
    require(file.ok(), "--save-state: " + (file.ok() ? std::string() : file.error().message));
}

std::string read_prompt_file(const std::string& path) {
    auto text = path == "-" ? read_to_end(STDIN_FILENO, "standard input", most_prompt_bytes)
                            : read_input(path, most_prompt_bytes, "prompt file", input_kind::any);
    if (!text) throw bad_input(text.error().message);
    return *std::move(text);
}

cache_options cache_options_of(const run_options& o) {
    cache_options c;
    for (const auto& text : o.settings) c.settings.push_back(parse_setting(text));
    require_running(c.settings, {o.policy});
    if (o.keep_tokens != 0 && !policy_wants(o.policy).evicts)
        throw bad_input("--keep-tokens: valid: 0, as policy " + o.policy + " keeps every entry");
    c.policy = o.policy;
    c.memory_bytes = static_cast<std::size_t>(o.memory_mib * (1 << 20));
    c.attend_tokens = o.attend_tokens;
    c.keep_tokens = o.keep_tokens;
    c.calibration = o.calibration.empty() ? calibration_beside(o.model) : o.calibration;
    c.gates = o.gates;
    c.votes = o.votes;
    c.io = o.io;
    c.path = o.kv_path;
    return c;
}

} // namespace engine
