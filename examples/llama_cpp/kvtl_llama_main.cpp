// kvtl-llama: kvtl-run's options with llama.cpp as the engine: any model that llama.cpp runs, its KV cache kept by kvtl.
//
//   kvtl-llama -m model.gguf -i --memory-mib 64                     a conversation
//   kvtl-llama -m model.gguf -p "The kernel is started by" --json -
//   kvtl-llama -m model.gguf --parallel 4 -f prompts.txt            one prompt per line
//
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, a model that has to be refused), 1 for a run
// that fails midway.
// SPDX-License-Identifier: MIT
#include "answering.hpp"
#include "cleanup.hpp"
#include "command_line.hpp"
#include "error.hpp"
#include "memory_report.hpp"
#include "model_choice.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "run_header.hpp"
#include "run_options.hpp"
#include "saved_state.hpp"
#include "session.hpp"
#include "session_chat.hpp"
#include "stopwatch.hpp"
#include "terminal.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

namespace {

using engine::bad_input;
using engine::require;
using llama_run::token_id;

constexpr const char* program = "kvtl-llama";

struct arguments : engine::run_options {
    bool interactive = false;
    bool plain = false;
    bool keep_file = false;
    bool least_memory = false;
    std::string trace_file;
    std::string tuned;
    std::size_t context = 0;
    std::size_t cells = 0;
    std::size_t parallel = 0;
};

void define_options(CLI::App& app, arguments& a) {
    engine::define_run_options(app, a, program, "GGUF file that llama.cpp runs");
    app.add_flag("-i,--interactive", a.interactive,
                 "a conversation in the terminal; -p or -f say the first thing");
    app.add_option(
        "-c,--context", a.context,
        "longest context of kvtl in tokens (default: what the model allows; without -i no more than needed)");
    app.add_option("--cells", a.cells, "tokens that llama.cpp itself keeps (default: one batch)");
    app.add_option("--parallel", a.parallel, "answer each line of -f FILE, N at once in one context");
    app.add_flag("--plain", a.plain, "llama.cpp alone, with its own cache: to compare");
    app.add_flag("--keep-kv", a.keep_file, "leave the cache's file behind");
    app.add_flag("--least-memory", a.least_memory,
                 "print the smallest memory that the policy can be opened with for this context, and end");
    app.add_option("--tuned", a.tuned, "what kvtl-tune --json wrote: settings of kvswap; --set changes them");
    app.add_option(
        "--record-trace", a.trace_file,
        "write q, k and v of every token and layer (kvtl-bench replays, kvtl-calibrate fits to it)");
    engine::finish_options(app, {"--context", "--cells", "--parallel"});
}

void check(const CLI::App& app, const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(a.interactive || a.prompt.has_value() || !a.prompt_file.empty() || !a.load_state.empty(),
            "no prompt: give one with -p TEXT or -f FILE, begin a conversation with -i, or go on with "
            "--load-state");
    require(app.count("--context") == 0 || a.context > 0, "--context: valid: 1 or more");
    require(app.count("--cells") == 0 || (a.cells > 0 && a.cells <= 1U << 24),
            "--cells: valid: 1 to 16777216");
    if (app.count("--parallel") != 0) {
        require(a.parallel >= 1 && a.parallel <= llama_max_parallel_sequences(),
                "--parallel: valid: 1 to " + std::to_string(llama_max_parallel_sequences()));
        require(!a.prompt_file.empty(), "--parallel: the prompts come from a file, one per line: -f FILE");
        require(!a.interactive, "--parallel: a conversation (-i) is one alone");
    }
    require(a.tuned.empty() || (!a.plain && a.policy == "kvswap"),
            "--tuned: valid: with policy kvswap, which kvtl-tune chooses the settings of");
    require(!a.least_memory || !a.plain, "--least-memory: valid: without --plain, which has no policy");
    require(!a.interactive || a.prompt_file != "-",
            "--file: - is standard input, which a conversation (-i) is typed into");
    engine::check_run_options(a);
    require(a.trace_file.empty() || (!a.interactive && !a.plain && a.parallel == 0),
            "--record-trace: valid: with one prompt, without -i, --parallel and --plain");
    require(a.trace_file != "-", "--record-trace: a trace needs a file");
    require(a.trace_file.empty() || a.load_state.empty(),
            "--record-trace: valid: without --load-state, as a trace begins with its prompt");
    engine::require_writable(a.trace_file, "--record-trace");
    require((a.load_state.empty() && a.save_state.empty()) || (!a.plain && app.count("--parallel") == 0),
            "--save-state, --load-state: valid: without --parallel and --plain");
    engine::check_save_state(a);
}

std::vector<std::string> texts_of(const arguments& a) {
    if (a.prompt) return {*a.prompt};
    if (a.prompt_file.empty()) return {};
    const std::string all = engine::read_prompt_file(a.prompt_file);
    if (a.parallel == 0) return {all};
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        std::string line = all.substr(at, end - at);
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty()) lines.push_back(std::move(line));
        at = end + 1;
    }
    return lines;
}

std::size_t longest_of(std::span<const std::vector<token_id>> prompts) {
    std::size_t longest = 0;
    for (const auto& p : prompts) longest = std::max(longest, p.size());
    return longest;
}

/// Tokens that a sequence may have.
std::size_t context_of(const arguments& a, const llama_run::loaded_model& model) {
    const std::size_t allowed = model.trained_context();
    if (a.context > allowed)
        throw bad_input("--context: valid: 1 to " + std::to_string(allowed) +
                        ", which the model was trained for");
    return a.context != 0 ? a.context : allowed;
}

/// Sizes that depend on the model and the prompts.
/// `before`: tokens of a text that goes on.
llama_run::session_options sizes_of(const arguments& a, const llama_run::loaded_model& model,
                                    std::span<const std::vector<token_id>> prompts, std::size_t before) {
    const std::size_t longest = longest_of(prompts), most = context_of(a, model);
    llama_run::session_options o;
    o.plain = a.plain;
    o.threads = a.threads;
    o.sequences = static_cast<std::uint32_t>(
        std::clamp<std::size_t>(a.parallel, 1, std::max<std::size_t>(prompts.size(), 1)));
    o.max_tokens = a.interactive || a.context != 0 ? most : before + longest + a.generate.predict;
    // Memory for what survives is promised when the whole prompt is seen at once. But how long a message will be is not
    // known, and llama.cpp's own memory grows with the batch, its mask with the square of that: longer ones come in
    // chunks.
    const bool evicts = !a.plain && engine::policy_wants(a.policy).evicts;
    const std::size_t whole = std::min<std::size_t>(a.interactive ? o.max_tokens : longest, 4096);
    std::size_t batch = a.prefill_chunk.value_or(evicts ? whole : std::size_t{512});
    batch = std::max<std::size_t>(std::min(batch, o.max_tokens * o.sequences), o.sequences);
    if (a.cells != 0 && !a.plain) {
        if (a.cells < o.sequences)
            throw bad_input("--cells: valid: " + std::to_string(o.sequences) +
                            " or more, one for each of --parallel");
        if (evicts && !a.prefill_chunk && a.cells < batch)
            throw bad_input("--cells: policy " + a.policy +
                            " evicts at the end of a prompt and sees it at once; valid: " +
                            std::to_string(batch) + " or more, or give a --prefill-chunk");
        batch = std::min(batch, a.cells);
    }
    o.batch = static_cast<std::uint32_t>(batch);
    o.cells = static_cast<std::uint32_t>(a.cells);
    o.keep_file = a.keep_file;
    o.least_memory = a.least_memory;
    o.trace_file = a.trace_file;
    o.tuned_file = a.tuned;
    if (a.plain) return o;

    o.cache = engine::cache_options_of(a);
    o.cache.prefill_tokens = a.interactive ? 0 : std::max<std::size_t>(longest, 1);
    o.cache.keep_file = a.keep_file;
    o.cache.fingerprint = llama_run::shipped_fingerprint(a.model);
    if (a.shards > model.kv_heads())
        throw bad_input("--shards: the model has " + std::to_string(model.kv_heads()) +
                        " KV heads, which is the most");
    o.cache.shards = a.shards; // 0: by the threads
    return o;
}

void answer_prompts(llama_run::session& session, const arguments& a,
                    std::span<const std::vector<token_id>> prompts, const engine::saved_state* state,
                    std::uint64_t model, engine::run_report& report) {
    const bool one = a.parallel == 0;
    const bool stream = a.json_file != "-";
    llama_run::answering how;
    how.generate = a.generate;
    how.at_once = static_cast<unsigned>(std::clamp<std::size_t>(a.parallel, 1, prompts.size()));
    how.whole_prompts = !a.plain && !a.prefill_chunk && engine::policy_wants(a.policy).evicts;
    std::size_t tokens = 0;
    for (const auto& p : prompts) tokens += p.size();
    engine::progress_bar reading("prompt", tokens);
    engine::progress_bar writing("tokens", a.generate.predict * prompts.size(),
                                 !stream || !one || ::isatty(STDOUT_FILENO) == 0);
    llama_run::answering_events events;
    events.read = [&](std::size_t done, std::size_t all) {
        reading.update(done);
        if (done == all) reading.clear();
    };
    events.generated = [&, count = std::size_t{0}](std::size_t, token_id id) mutable {
        writing.update(++count);
        if (!stream || !one) return;
        const auto piece = session.model().piece(id);
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
    };
    if (state != nullptr) {
        const engine::stopwatch taken;
        const kvtl::loaded_sequence loaded = session.load(0, a.load_state, {.model = model});
        report.loaded = {.tokens = loaded.tokens, .seconds = taken.seconds(), .exact = loaded.exact};
        how.from = {.unread = state->unread(), .sampler = state->text.sampler};
    }
    events.finished = [&](unsigned sequence, const engine::answer& said, const engine::sampler& choice) {
        if (a.save_state.empty()) return;
        const engine::stopwatch taken;
        engine::saved_text text;
        if (state != nullptr)
            text.tokens.assign(
                state->text.tokens.begin(),
                state->text.tokens.end() -
                    static_cast<std::ptrdiff_t>(prompts[0].empty() ? 0 : state->unread().size()));
        text.tokens.insert(text.tokens.end(), prompts[0].begin(), prompts[0].end());
        text.tokens.insert(text.tokens.end(), said.tokens.begin(), said.tokens.end());
        text.sampler = choice.state();
        const std::vector<std::byte> note = text.note();
        const kvtl::save_facts saved = session.save(sequence, a.save_state, {.model = model, .note = note});
        report.saved = {.bytes = saved.bytes, .seconds = taken.seconds()};
    };
    llama_run::answers done = answer(session, prompts, how, events);
    writing.clear();
    if (stream && one) std::printf("\n");
    for (std::size_t i = 0; i < done.each.size(); ++i) {
        const engine::answer& each = done.each[i];
        if (stream && !one) std::printf("[%zu]%s\n", i + 1, each.text.c_str());
        report.prompt_tokens += each.prompt_tokens;
        report.run.tokens.insert(report.run.tokens.end(), each.tokens.begin(), each.tokens.end());
        report.text += (i > 0 ? "\n" : "") + each.text;
    }
    report.run.logits = std::move(done.logits);
    report.run.prefill_s = done.read_s;
    report.run.decode_s = done.generate_s;
    report.run.steps = done.steps;
    report.decode_read_bytes = done.read_bytes;
    report.decode_reads = done.reads;
    if (!one) report.answers = std::move(done.each);
}

void talk(llama_run::session& session, const arguments& a, const std::vector<std::string>& texts,
          std::uint64_t model, engine::run_report& report) {
    engine::terminal_options o;
    o.generate = a.generate;
    o.load_state = a.load_state;
    o.save_state = a.save_state;
    o.stream = a.json_file != "-";
    if (!texts.empty()) o.first = texts.front();
    llama_run::session_chat chat(session, model);
    engine::converse(chat, o, program, report);
}

void print_header(const arguments& a, const llama_run::session& session) {
    const engine::cache_stats opened = session.stats();
    engine::print_header(program,
                         {.model = a.model,
                          .shape = session.shape(),
                          .policies = {a.policy},
                          .memory_mib = {a.memory_mib},
                          .device = engine::device_words(opened.io, opened.direct, opened.memory_backed),
                          .threads = a.threads});
    engine::note_products(program, a.policy, opened.products);
}

void run(arguments a) {
    const auto texts = texts_of(a);
    const llama_run::loaded_model model(a.model);
    std::optional<engine::saved_state> state;
    if (!a.load_state.empty() && !a.interactive) state = engine::look_into_state(a.load_state);
    std::size_t before = 0;
    std::vector<std::vector<token_id>> prompts;
    if (!a.interactive) {
        for (const auto& text : texts) {
            prompts.push_back(text.empty() ? std::vector<token_id>{} : model.encode(text, !state, true));
            if (prompts.back().empty() && !state) throw bad_input("the prompt is empty");
        }
        if (state) {
            before = state->text.tokens.size();
            if (prompts.empty()) prompts.emplace_back();
            const auto unread = state->unread();
            require(!prompts[0].empty() || !unread.empty(),
                    "--load-state: the saved text has ended; say what comes next with -p or -f");
            if (!prompts[0].empty()) { // what was chosen last is read with it
                prompts[0].insert(prompts[0].begin(), unread.begin(), unread.end());
                before -= unread.size();
            }
        }
        if (prompts.empty()) throw bad_input("the prompt is empty");
        a.generate.predict =
            engine::room_for(a.generate.predict, before + longest_of(prompts), context_of(a, model), program);
    }
    const llama_run::session_options o = sizes_of(a, model, prompts, before);
    if (!a.plain && engine::policy_wants(a.policy).prefetch)
        std::fprintf(stderr,
                     "%s: note: policy %s reads ahead by predicted queries; llama.cpp gives true ones only, "
                     "so that its "
                     "reads begin when a layer is attended\n",
                     program, a.policy.c_str());
    if (a.least_memory) {
        const llama_run::session session(model, o, program);
        engine::print_least({{a.policy, "", session.least()}}, a.json_file);
        return;
    }
    engine::run_report report;
    {
        llama_run::session session(model, o, program);
        report.cells = session.cells();
        require(a.save_state.empty() || !session.one_sequence_per_batch(),
                "--save-state: the model has layers with a recurrent state, which is not saved");
        if (!a.plain) print_header(a, session);
        if (a.interactive)
            talk(session, a, texts, o.cache.fingerprint, report);
        else
            answer_prompts(session, a, prompts, state ? &*state : nullptr, o.cache.fingerprint, report);
        session.finish_trace();
        report.stats = session.stats();
    }
    report.policy = a.plain ? "plain" : a.policy;
    report.engine = "llama.cpp " KVTL_LLAMA_VERSION;
    report.process_resident_bytes_peak = llama_run::process_resident_bytes_peak();
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(report));
    if (!a.interactive)
        engine::print_summary(report);
    else
        engine::print_memory(report.stats);
    std::fprintf(stderr, "%s, %zu cells; process %.1f MiB at its peak, of which kvtl %.1f MiB\n",
                 report.engine.c_str(), report.cells,
                 static_cast<double>(report.process_resident_bytes_peak) / (1 << 20),
                 static_cast<double>(report.stats.resident_bytes_peak) / (1 << 20));
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app("Generates text with llama.cpp and a GGUF model; the KV cache lives on flash and is "
                     "kept by kvtl.",
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
