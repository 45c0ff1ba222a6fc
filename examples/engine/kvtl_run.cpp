// kvtl-run: generates text with a GGUF model whose KV cache is kept by kvtl.
//
//   kvtl-run model.gguf -p "The kernel is started by" --policy dynakv --memory-mib 4 --json -
//   kvtl-run model.gguf -i                                                   a conversation
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
#include "saved_state.hpp"
#include "stopwatch.hpp"
#include "terminal.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"
#include "transformer_chat.hpp"
#include "tuned_file.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace {

using engine::require;

constexpr const char* program = "kvtl-run";

struct arguments : engine::run_options {
    std::string trace_file;
    std::string tuned;
    std::string probe{engine::default_probe};
    std::string lookahead;
    std::size_t context = 0;
    bool interactive = false;
    bool least_memory = false;
};

void define_options(CLI::App& app, arguments& a) {
    engine::define_run_options(app, a, program,
                               "GGUF file (llama, qwen2, qwen3; F32, F16, BF16, Q8_0, Q4_0)");
    app.add_flag("-i,--interactive", a.interactive,
                 "a conversation in the terminal; -p or -f say the first thing");
    app.add_option(
        "-c,--context", a.context,
        "longest context in tokens (default: what the model allows; without -i no more than needed)");
    app.add_option("--share-layers", a.share_layers, engine::share_layers_help);
    app.add_option("--tuned", a.tuned, "what kvtl-tune --json wrote: settings of kvswap; --set changes them");
    app.add_option("--probe", a.probe,
                   "text that imitates what follows the prompt, for policies that look ahead")
        ->capture_default_str();
    app.add_option("--lookahead", a.lookahead,
                   "file of a trained lookahead (bench/train_gates) instead of the probe's text");
    app.add_option(
        "--record-trace", a.trace_file,
        "write q, k and v of every token and layer (kvtl-bench replays, kvtl-calibrate fits to it)");
    app.add_flag("--least-memory", a.least_memory,
                 "print the smallest memory that the policy can be opened with for this prompt, and end");
    engine::finish_options(app, {"--context"});
}

void check(const CLI::App& app, const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(a.interactive || a.prompt.has_value() || !a.prompt_file.empty() || !a.load_state.empty(),
            "no prompt: give one with -p TEXT or -f FILE, begin a conversation with -i, or go on with "
            "--load-state");
    require(a.load_state.empty() || a.trace_file.empty(),
            "--record-trace: valid: without --load-state, as a trace begins with its prompt");
    require(!a.interactive || a.prompt_file != "-",
            "--file: - is standard input, which a conversation (-i) is typed into");
    require(app.count("--context") == 0 || a.context > 0, "--context: valid: 1 or more");
    require(!a.probe.empty(), "--probe: the text is empty");
    engine::check_run_options(a);
    require(a.trace_file != "-", "--record-trace: a trace needs a file");
    require(a.trace_file.empty() || !a.interactive,
            "--record-trace: valid: without -i, which takes tokens back");
    engine::require_writable(a.trace_file, "--record-trace");
    engine::check_save_state(a);
}

/// What -p or -f say; nothing for a conversation that begins with neither.
std::optional<std::string> prompt_of(const arguments& a) {
    if (a.prompt || a.prompt_file.empty()) return a.prompt;
    return engine::read_prompt_file(a.prompt_file);
}

/// What is run: a prompt with what is generated behind it, or a conversation.
struct job {
    std::optional<std::string> prompt;
    std::optional<engine::saved_state> state; ///< what the text goes on from
    std::vector<engine::token_id> tokens; ///< of the prompt; none in a conversation, which reads turn by turn
    engine::generate_options generate;
    std::size_t most_tokens = 0; ///< that the cache may have to hold
};

job make_job(const arguments& a, const engine::model& model, const engine::tokenizer& words) {
    job j{.prompt = prompt_of(a), .state = {}, .tokens = {}, .generate = a.generate};
    if (!a.load_state.empty() && !a.interactive) j.state = engine::look_into_state(a.load_state);
    const std::size_t before = j.state ? j.state->text.tokens.size() : 0;
    const std::size_t allowed = model.hyper().context;
    require(a.context <= allowed,
            "--context: valid: 1 to " + std::to_string(allowed) + ", which the model was trained for");
    const std::size_t context = a.context != 0 ? a.context : allowed;
    if (!a.interactive) {
        if (j.prompt && !j.prompt->empty()) j.tokens = words.encode(*j.prompt, !j.state);
        if (j.state)
            require(!j.tokens.empty() || !j.state->unread().empty(),
                    "--load-state: the saved text has ended; say what comes next with -p or -f");
        else
            require(!j.tokens.empty(), "the prompt is empty");
        j.generate.predict = engine::room_for(a.generate.predict, before + j.tokens.size(), context, program);
    }
    const bool whole = a.interactive || a.context != 0;
    j.most_tokens = whole ? context : before + j.tokens.size() + j.generate.predict;
    return j;
}

engine::cache_options options_of(const arguments& a, const engine::model& model, const job& j) {
    engine::cache_options o = engine::cache_options_of(a);
    o.shape = model.hyper().shape;
    o.owner = engine::owners_of(a.share_layers, o.shape.layers);
    o.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    o.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    o.max_tokens = j.most_tokens;
    o.fingerprint = engine::fingerprint_of(model);
    o.prefill_tokens = std::max<std::size_t>(j.tokens.size(), j.state ? 1 : 0);
    o.chunk_tokens = a.prefill_chunk.value_or(std::size_t{512});
    const auto tuned = engine::tuned_settings(a.tuned, std::span(&a.policy, 1), o.shape, 1, o.max_tokens);
    o.settings.insert(o.settings.begin(), tuned.begin(), tuned.end());
    o.shards = a.shards != 0 ? a.shards : std::min(2U, o.shape.kv_heads);
    require(o.shards <= o.shape.kv_heads,
            "--shards: the model has " + std::to_string(o.shape.kv_heads) + " KV heads, which is the most");
    return o;
}

/// Standard output hears the tokens as they come, unless the JSON has it.
engine::generation answer(const arguments& a, const job& j, engine::transformer& transformer,
                          const engine::tokenizer& words) {
    const bool stream = a.json_file != "-";
    engine::progress_bar reading("prompt", j.tokens.size());
    engine::progress_bar writing("tokens", j.generate.predict, !stream || ::isatty(STDOUT_FILENO) == 0);
    engine::generate_events events;
    events.prefilled = [&](std::size_t done) {
        reading.update(done);
        if (done == j.tokens.size()) reading.clear();
    };
    events.generated = [&, count = std::size_t{0}](engine::token_id id) mutable {
        writing.update(++count);
        if (!stream) return;
        const auto piece = words.piece(id);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
    };
    std::optional<engine::resume_point> from;
    if (j.state) from = {.unread = j.state->unread(), .sampler = j.state->text.sampler};
    engine::generation run =
        generate(transformer, words, j.tokens, j.generate, events, from ? &*from : nullptr);
    if (stream) {
        std::printf("\n");
        std::fflush(stdout); // what follows goes to standard error
    }
    return run;
}

/// The sequence that --load-state names becomes the transformer's.
engine::run_report::loaded_state load(const arguments& a, std::uint64_t model, engine::kv_cache& cache,
                                      engine::transformer& transformer) {
    const engine::stopwatch taken;
    const auto loaded = cache.load(a.load_state, {.model = model});
    if (!loaded) throw engine::bad_input("--load-state: " + loaded.error().message);
    transformer.go_on_in(loaded->seq, loaded->tokens);
    return {.tokens = loaded->tokens, .seconds = taken.seconds(), .exact = loaded->exact};
}

/// All that the transformer has read, and what has been chosen since.
engine::run_report::written_state save(const arguments& a, std::uint64_t model, const job& j,
                                       const engine::generation& run, engine::kv_cache& cache,
                                       const engine::transformer& transformer) {
    const engine::stopwatch taken;
    engine::saved_text text;
    if (j.state) text.tokens = j.state->text.tokens;
    text.tokens.insert(text.tokens.end(), j.tokens.begin(), j.tokens.end());
    text.tokens.insert(text.tokens.end(), run.tokens.begin(), run.tokens.end());
    text.sampler = run.sampler;
    const std::vector<std::byte> note = text.note();
    const auto saved = cache.save(transformer.sequence(), a.save_state, {.model = model, .note = note});
    if (!saved) throw engine::run_failure("--save-state: " + saved.error().message);
    return {.bytes = saved->bytes, .seconds = taken.seconds()};
}

/// What a trace of this model is told about it.
kvtl::trace_header trace_of(const engine::cache_options& o) {
    using header = kvtl::trace_header;
    const auto pairs = static_cast<std::uint32_t>(o.rope_frequencies.size());
    return {.shape = o.shape,
            .fields = header::has_k_pre | header::has_prediction,
            .pair_distance = o.rope_neighbours ? 1 : pairs,
            .fingerprint = o.fingerprint};
}

void run(const arguments& a) {
    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const job j = make_job(a, model, words);
    engine::cache_options options = options_of(a, model, j);
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
    options.threads = pool.lend(); // of more than there are KV heads
    engine::run_report report;
    {
        const auto cache = engine::open_or_fall_back(options, program);
        const engine::cache_stats opened = cache->stats();
        engine::print_header(program,
                             {.model = a.model,
                              .shape = options.shape,
                              .policies = {a.policy},
                              .memory_mib = {a.memory_mib},
                              .device = engine::device_words(opened.io, opened.direct, opened.memory_backed),
                              .threads = a.threads});
        engine::note_products(program, a.policy, opened.products);
        std::optional<engine::recording_cache> recording;
        if (!a.trace_file.empty()) recording.emplace(*cache, a.trace_file, trace_of(options));
        engine::kv_cache& used = recording ? static_cast<engine::kv_cache&>(*recording) : *cache;
        // Memory for what survives is promised when the whole prompt is seen at once.
        const std::size_t pass = a.prefill_chunk.value_or(engine::policy_wants(a.policy).evicts &&
                                                                  !engine::policy_wants(a.policy).by_chunk
                                                              ? options.max_tokens
                                                              : std::size_t{512});
        const engine::trained_lookahead ahead =
            a.lookahead.empty() ? engine::trained_lookahead{}
                                : engine::insist(engine::read_lookahead(a.lookahead, model));
        engine::transformer transformer(model, used, pool, pass);
        transformer.share_layers(options.owner);
        transformer.look_ahead(engine::continuation(words, a.probe));
        transformer.replay(engine::continuation(words, engine::replay_first),
                           engine::continuation(words, engine::replay_later));
        if (!a.lookahead.empty()) transformer.look_ahead(ahead);
        if (a.interactive) {
            const auto name = "tokenizer.chat_template";
            engine::transformer_chat chat(transformer, words, used,
                                          file.has(name) ? std::string(file.string(name)) : "",
                                          options.max_tokens, pass, options.fingerprint);
            engine::converse(chat,
                             {.generate = a.generate,
                              .first = j.prompt,
                              .stream = a.json_file != "-",
                              .load_state = a.load_state,
                              .save_state = a.save_state},
                             program, report);
        } else {
            if (j.state) report.loaded = load(a, options.fingerprint, *cache, transformer);
            report.run = answer(a, j, transformer, words);
            if (!a.save_state.empty())
                report.saved = save(a, options.fingerprint, j, report.run, *cache, transformer);
            report.prompt_tokens = j.tokens.size();
            report.text = words.decode(report.run.tokens);
        }
        if (recording) recording->finish();
        report.stats = cache->stats();
    }
    engine::forget_file();
    report.policy = a.policy;
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(report));
    if (a.interactive)
        engine::print_memory(report.stats);
    else
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
        if (a.list_policies) {
            engine::print_policies();
        } else {
            check(app, a);
            run(a);
        }
        return 0;
    });
}
