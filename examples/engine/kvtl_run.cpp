// kvtl-run: generates text with a GGUF model whose KV cache is kept by kvtl.
//
//   kvtl-run -m model.gguf -p "The kernel is started by" --policy dynakv --memory-mib 4 --json -
//
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible value), 1 for a run that
// fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "cleanup.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "generate.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "lookahead.hpp"
#include "model.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "recording_cache.hpp"
#include "report.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <CLI/CLI.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

namespace {

using engine::bad_input;
using engine::require;

constexpr const char* program = "kvtl-run";

struct arguments {
    std::string model;
    std::optional<std::string> prompt;
    std::string prompt_file;
    std::string json_file;
    std::string trace_file;
    std::string calibration;
    std::string gates;
    std::string probe{engine::default_probe};
    std::string policy = "dynakv";
    std::string io = "uring";
    std::string kv_path = "./kvtl-" + std::to_string(::getpid()) + ".kv";
    std::size_t attend_tokens = 256;
    std::size_t keep_tokens = 0;
    std::optional<std::size_t> prefill_chunk;
    double memory_mib = 64;
    unsigned threads = 2;
    unsigned shards = 0;
    bool list_policies = false;
    std::vector<std::string> settings;
    engine::generate_options generate;
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    app.add_option("-m,--model", a.model, "GGUF file (llama, qwen2, qwen3; F32, F16, BF16, Q8_0, Q4_0)");
    auto* prompt = app.add_option("-p,--prompt", a.prompt, "the prompt");
    app.add_option("-f,--file", a.prompt_file, "read the prompt from a file")->excludes(prompt);
    app.add_option("-n,--predict", a.generate.predict, "most tokens to generate")->capture_default_str();
    app.add_option("--temp", a.generate.temperature, "temperature; 0 takes the best token")
        ->capture_default_str();
    app.add_option("--seed", a.generate.seed, "of the sampling")->capture_default_str();
    app.add_flag("--ignore-eos", a.generate.ignore_end, "go on behind the end of the text");
    app.add_option("--logits", a.generate.top_logits, "put the N highest logits of each step into the JSON");
    app.add_option("--policy", a.policy, "preset that keeps the cache")->capture_default_str();
    app.add_flag("--list-policies", a.list_policies, "print the presets that are built in");
    app.add_option("--set", a.settings, "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable)");
    app.add_option("--attend-tokens", a.attend_tokens, "entries each head attends per step")
        ->capture_default_str();
    app.add_option("--keep-tokens", a.keep_tokens,
                   "entries per head that survive where the policy evicts; 0: as many as are attended");
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache in MiB")->capture_default_str();
    app.add_option("--kv-path", a.kv_path, "file of the cache (default ./kvtl-PID.kv)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--shards", a.shards,
                   "parts of the cache that work concurrently (default: 2, at most KV heads)");
    app.add_option("--prefill-chunk", a.prefill_chunk,
                   "tokens per pass of the prompt (default: 512, all where the policy evicts at its end)");
    app.add_option("--calibration", a.calibration,
                   "bases for policies that need them (default: the model's name with .cal, if it is there)");
    app.add_option("--gates", a.gates,
                   "file of gates for policies that need them (default: what ships with the model)");
    app.add_option("--probe", a.probe,
                   "text that stands for the prompt's future where the policy looks ahead")
        ->capture_default_str();
    app.add_option("--record-trace", a.trace_file,
                   "write q, k and v of every token and layer (kvtl-bench replays)");
    app.add_option("--json", a.json_file, "write the result as JSON; - for standard output");
    for (const char* name : {"--predict", "--seed", "--logits", "--attend-tokens", "--keep-tokens",
                             "--threads", "--shards", "--prefill-chunk"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) // the last one counts, as shells' aliases expect
        if (option->get_name() != "--set") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void check(const arguments& a) {
    require(!a.model.empty(), "no model: give one with -m FILE");
    require(a.prompt.has_value() || !a.prompt_file.empty(), "no prompt: give one with -p TEXT or -f FILE");
    require(a.generate.temperature >= 0 && a.generate.temperature <= 1000, "--temp: valid: 0 to 1000");
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(a.attend_tokens > 0, "--attend-tokens: valid: 1 or more");
    require(a.prefill_chunk != std::size_t{0}, "--prefill-chunk: valid: 1 or more");
    require(!a.probe.empty(), "--probe: the text is empty");
    require(a.threads >= 1 && a.threads <= 256, "--threads: valid: 1 to 256");
    require(a.shards <= 256, "--shards: valid: 1 to 256");
    engine::require_io(a.io);
    require(!a.kv_path.empty() || a.io == "memory", "--kv-path: the path is empty");
    engine::require_policy(a.policy, "--policy");
    require(a.trace_file != "-", "--record-trace: a trace needs a file");
    engine::require_writable(a.trace_file, "--record-trace");
    engine::require_writable(a.json_file, "--json"); // the run may take long: find out now that it cannot
}

std::string read_prompt(const arguments& a) {
    if (a.prompt) return *a.prompt;
    struct stat info = {};
    std::ifstream in(a.prompt_file, std::ios::binary);
    if (!in || ::stat(a.prompt_file.c_str(), &info) != 0 || S_ISDIR(info.st_mode))
        throw bad_input("cannot read prompt file " + a.prompt_file + ": " +
                        std::strerror(in ? EISDIR : errno));
    return {std::istreambuf_iterator<char>(in), {}};
}

void print_summary(const engine::run_report& r) {
    const auto& s = r.stats;
    const double steps = static_cast<double>(std::max<std::size_t>(r.run.steps, 1));
    std::fprintf(
        stderr,
        "%s on %s%s: %zu prompt tokens in %.2f s, %zu tokens at %.1f/s, %.2f MiB resident, "
        "%.1f KiB in %.1f reads per step, hit rate %.2f\n",
        r.policy.c_str(), s.io.c_str(), s.direct ? " (direct)" : "", r.prompt_tokens, r.run.prefill_s,
        r.run.tokens.size(), r.run.tokens_per_s(), static_cast<double>(s.resident_bytes_peak) / (1 << 20),
        static_cast<double>(s.read_bytes) / 1024 / steps, static_cast<double>(s.reads) / steps, s.hit_rate);
}

void run(const arguments& a) {
    check(a);
    engine::cache_options options;
    for (const auto& text : a.settings) options.settings.push_back(engine::parse_setting(text));
    const std::string prompt = read_prompt(a);
    if (prompt.empty()) throw bad_input("the prompt is empty");

    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const auto tokens = words.encode(prompt, true);
    const std::size_t context = model.hyper().context;
    if (tokens.empty()) throw bad_input("the prompt is empty");
    if (tokens.size() > context || a.generate.predict > context - tokens.size())
        throw bad_input("prompt of " + std::to_string(tokens.size()) + " tokens + --predict " +
                        std::to_string(a.generate.predict) + " is longer than the model's context of " +
                        std::to_string(context));

    options.policy = a.policy;
    options.shape = model.hyper().shape;
    options.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    options.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    options.max_tokens = tokens.size() + a.generate.predict;
    options.memory_bytes = static_cast<std::size_t>(a.memory_mib * (1 << 20));
    options.attend_tokens = a.attend_tokens;
    options.keep_tokens = a.keep_tokens;
    options.calibration = a.calibration.empty() ? engine::calibration_beside(a.model) : a.calibration;
    options.fingerprint = engine::fingerprint_of(model);
    options.gates = a.gates;
    options.prefill_tokens = tokens.size();
    const engine::cache_wants budgets = engine::policy_wants(a.policy);
    if (a.keep_tokens != 0 && !budgets.evicts)
        throw bad_input("--keep-tokens: valid: 0, as policy " + a.policy + " keeps every entry");
    options.shards = a.shards != 0 ? a.shards : std::min(2U, options.shape.kv_heads);
    if (options.shards > options.shape.kv_heads)
        throw bad_input("--shards: the model has " + std::to_string(options.shape.kv_heads) +
                        " KV heads, which is the most");
    options.io = a.io;
    options.path = a.kv_path;

    // Threads inherit what is held back: only this one takes the ending signals, and so never while it opens
    // a file.
    engine::thread_pool pool = [&] {
        const engine::signal_hold hold;
        return engine::thread_pool(a.threads);
    }();
    engine::run_report report;
    {
        const auto cache = engine::open_or_fall_back(options, program);
        std::optional<engine::recording_cache> recording;
        if (!a.trace_file.empty()) recording.emplace(*cache, options.shape, a.trace_file);
        engine::kv_cache& used = recording ? static_cast<engine::kv_cache&>(*recording) : *cache;
        // Memory for what survives is promised when the whole prompt is seen at once.
        const std::size_t pass = budgets.evicts ? tokens.size() : std::size_t{512};
        engine::transformer transformer(model, used, pool, a.prefill_chunk.value_or(pass));
        transformer.look_ahead(engine::continuation(words, a.probe));
        const bool stream = a.json_file != "-";
        engine::progress_bar reading("prompt", tokens.size());
        engine::progress_bar writing("tokens", a.generate.predict, !stream || ::isatty(STDOUT_FILENO) == 0);
        engine::generate_events events;
        events.prefilled = [&](std::size_t done) {
            reading.update(done);
            if (done == tokens.size()) reading.clear();
        };
        events.generated = [&, count = std::size_t{0}](engine::token_id id) mutable {
            writing.update(++count);
            if (!stream) return;
            const auto piece = words.piece(id);
            std::fwrite(piece.data(), 1, piece.size(), stdout);
            std::fflush(stdout);
        };
        report.run = generate(transformer, words, tokens, a.generate, events);
        if (stream) std::printf("\n");
        if (recording) recording->finish();
        report.stats = cache->stats();
    }
    engine::forget_file();
    report.policy = a.policy;
    report.prompt_tokens = tokens.size();
    report.text = words.decode(report.run.tokens);
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(report));
    print_summary(report);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app("Generates text with a GGUF model; the KV cache lives on flash and is kept by kvtl.",
                     program);
        define_options(app, a);
        try {
            app.parse(argc, argv);
        } catch (const CLI::Success& e) { // --help, --version
            return app.exit(e);
        } catch (const CLI::ParseError& e) {
            return engine::fail(program, 2, e.what());
        }
        if (a.list_policies)
            engine::print_policies();
        else
            run(a);
        return 0;
    });
}
