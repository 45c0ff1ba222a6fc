// kvtl-run: generates text with a GGUF model whose KV cache is kept by kvtl.
//
//   kvtl-run model.gguf -p "The kernel is started by" --policy dynakv --memory-mib 4 --json -
//
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible value), 1 for a run that
// fails midway.
// SPDX-License-Identifier: MIT
#include "cleanup.hpp"
#include "command_line.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "generate.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "lookahead.hpp"
#include "memory_report.hpp"
#include "model.hpp"
#include "model_choice.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "recording_cache.hpp"
#include "report.hpp"
#include "run_header.hpp"
#include "run_options.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

namespace {

using engine::bad_input;
using engine::require;

constexpr const char* program = "kvtl-run";

struct arguments : engine::run_options {
    std::string trace_file;
    std::string probe{engine::default_probe};
    bool least_memory = false;
};

void define_options(CLI::App& app, arguments& a) {
    engine::define_run_options(app, a, program,
                               "GGUF file (llama, qwen2, qwen3; F32, F16, BF16, Q8_0, Q4_0)");
    app.add_option("--probe", a.probe,
                   "text that stands for the prompt's future where the policy looks ahead")
        ->capture_default_str();
    app.add_option("--record-trace", a.trace_file,
                   "write q, k and v of every token and layer (kvtl-bench replays)");
    app.add_flag("--least-memory", a.least_memory,
                 "print the smallest memory that the policy can be opened with for this prompt, and end");
    engine::finish_options(app);
}

void check(const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(a.prompt.has_value() || !a.prompt_file.empty(), "no prompt: give one with -p TEXT or -f FILE");
    require(!a.probe.empty(), "--probe: the text is empty");
    engine::check_run_options(a);
    require(a.trace_file != "-", "--record-trace: a trace needs a file");
    engine::require_writable(a.trace_file, "--record-trace");
}

void run(const arguments& a) {
    check(a);
    const std::string prompt = a.prompt ? *a.prompt : engine::read_prompt_file(a.prompt_file);
    if (prompt.empty()) throw bad_input("the prompt is empty");

    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const auto tokens = words.encode(prompt, true);
    const std::size_t context = model.hyper().context;
    if (tokens.empty()) throw bad_input("the prompt is empty");
    engine::generate_options generate = a.generate;
    generate.predict = engine::room_for(a.generate.predict, tokens.size(), context, program);

    engine::cache_options options = engine::cache_options_of(a);
    options.shape = model.hyper().shape;
    options.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    options.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    options.max_tokens = tokens.size() + generate.predict;
    options.fingerprint = engine::fingerprint_of(model);
    options.prefill_tokens = tokens.size();
    const engine::cache_wants budgets = engine::policy_wants(a.policy);
    options.shards = a.shards != 0 ? a.shards : std::min(2U, options.shape.kv_heads);
    if (options.shards > options.shape.kv_heads)
        throw bad_input("--shards: the model has " + std::to_string(options.shape.kv_heads) +
                        " KV heads, which is the most");

    if (a.least_memory) {
        engine::print_least({{a.policy, "", engine::least_memory(options)}}, a.json_file);
        return;
    }

    // Threads inherit what is held back: only this one takes the ending signals, and so never while it opens
    // a file.
    engine::thread_pool pool = [&] {
        const engine::signal_hold hold;
        return engine::thread_pool(a.threads);
    }();
    engine::run_report report;
    {
        const auto cache = engine::open_or_fall_back(options, program);
        const engine::cache_stats opened = cache->stats();
        engine::print_header(program, {.model = a.model,
                                       .shape = options.shape,
                                       .policies = {a.policy},
                                       .memory_mib = {a.memory_mib},
                                       .device = engine::device_words(opened.io, opened.direct),
                                       .threads = a.threads});
        std::optional<engine::recording_cache> recording;
        if (!a.trace_file.empty()) recording.emplace(*cache, options.shape, a.trace_file);
        engine::kv_cache& used = recording ? static_cast<engine::kv_cache&>(*recording) : *cache;
        // Memory for what survives is promised when the whole prompt is seen at once.
        const std::size_t pass = budgets.evicts ? tokens.size() : std::size_t{512};
        engine::transformer transformer(model, used, pool, a.prefill_chunk.value_or(pass));
        transformer.look_ahead(engine::continuation(words, a.probe));
        const bool stream = a.json_file != "-";
        engine::progress_bar reading("prompt", tokens.size());
        engine::progress_bar writing("tokens", generate.predict, !stream || ::isatty(STDOUT_FILENO) == 0);
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
        report.run = engine::generate(transformer, words, tokens, generate, events);
        if (stream) std::printf("\n");
        if (recording) recording->finish();
        report.stats = cache->stats();
    }
    engine::forget_file();
    report.policy = a.policy;
    report.prompt_tokens = tokens.size();
    report.text = words.decode(report.run.tokens);
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(report));
    engine::print_summary(report);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app("Generates text with a GGUF model; the KV cache lives on flash and is kept by kvtl.",
                     program);
        define_options(app, a);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        if (a.list_policies)
            engine::print_policies();
        else
            run(a);
        return 0;
    });
}
