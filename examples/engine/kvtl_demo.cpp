// kvtl-demo: how well, and at what cost, policies answer questions about a document longer than their memory.
//
//   kvtl-demo -m tiny-2k.gguf --data prose.txt --questions 20 --memory-mib 3.25 --html report.html
//
// Every question has its own document. The document is prefilled; the question is then decoded token by
// token, so that no policy sees it while it organises the document, and what it needs has to come back from
// the cache file. Then a piece of running text is predicted token by token: the perplexity ratio says how
// much worse than with everything attended. Every policy gets the same documents, questions and text
// (eval/evaluator.hpp). One that cannot be opened says why in its line; that is an error only when no policy
// that was named can. Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible
// value), 1 for a run that fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "cleanup.hpp"
#include "command_line.hpp"
#include "conclusion.hpp"
#include "contenders.hpp"
#include "demo_document.hpp"
#include "error.hpp"
#include "evaluator.hpp"
#include "fingerprint.hpp"
#include "gguf.hpp"
#include "input_file.hpp"
#include "kv_cache.hpp"
#include "memory_report.hpp"
#include "model.hpp"
#include "model_choice.hpp"
#include "program.hpp"
#include "report_facts.hpp"
#include "report_html.hpp"
#include "row.hpp"
#include "tasks.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using engine::require;

constexpr const char* program = "kvtl-demo";

/// Room for " 48213" however it is cut into tokens.
constexpr std::size_t most_answer_tokens = 8;

struct arguments {
    std::string model;
    std::string data;
    std::string policies = "all";
    std::string io = "uring";
    std::string kv_path = "./kvtl-demo-" + std::to_string(::getpid()) + ".kv";
    std::string calibration;
    std::string json_file;
    std::string html_file;
    std::size_t questions = 20;
    std::string attend_tokens = "128";
    std::size_t nll_tokens = 800;
    std::size_t nll_prefill = 256;
    double memory_mib = 3.25;
    unsigned threads = 2;
    bool list_policies = false;
    std::vector<std::string> settings;
    engine::document_plan document;
    std::vector<std::pair<std::string, std::string>> facts; ///< of this run
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    engine::define_model(app, a.model, "GGUF file of a model that knows the questions (tiny-2k)");
    app.add_option("--data", a.data, "prose that the documents are made of");
    app.add_option("--policies", a.policies, "names separated by commas, or all")->capture_default_str();
    app.add_flag("--list-policies", a.list_policies, "print the presets that are built in");
    app.add_option("--questions", a.questions, "how many, each about its own document")
        ->capture_default_str();
    app.add_option("--tokens", a.document.tokens, "of a document with its question")->capture_default_str();
    app.add_option("--facts", a.document.facts, "in a document, one of which is asked for")
        ->capture_default_str();
    app.add_option("--seed", a.document.seed, "of the documents")->capture_default_str();
    app.add_option("--set", a.settings, "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable)");
    app.add_option("--attend-tokens", a.attend_tokens, "entries each head attends per step: one or several")
        ->capture_default_str();
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache in MiB (full is exempt)")
        ->capture_default_str();
    app.add_option("--nll-tokens", a.nll_tokens, "of the running text; 0: none")->capture_default_str();
    app.add_option("--nll-prefill", a.nll_prefill, "of them are prefilled")->capture_default_str();
    app.add_option("--calibration", a.calibration,
                   "file of bases for policies that need one (default: MODEL.cal beside the model)");
    app.add_option("--kv-path", a.kv_path, "file of the cache (default ./kvtl-demo-PID.kv)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
    app.add_option("--html", a.html_file, "write a report with plots");
    for (const char* name :
         {"--questions", "--tokens", "--facts", "--seed", "--nll-tokens", "--nll-prefill", "--threads"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) // the last one counts, so that scripts can have defaults
        if (option->get_name() != "--set") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void check(const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(!a.data.empty(), "no prose: give it with --data FILE");
    require(a.questions >= 1 && a.questions <= 100000, "--questions: valid: 1 to 100000");
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(a.threads >= 1 && a.threads <= 256, "--threads: valid: 1 to 256");
    require(!a.kv_path.empty() || a.io == "memory", "--kv-path: the path is empty");
    engine::require_io(a.io);
    engine::require_writable(a.json_file, "--json");
    engine::require_writable(a.html_file, "--html");
    require(a.html_file != "-", "--html: a report needs a file");
}

std::string read_prose(const std::string& path) {
    auto text = engine::read_input(path, engine::most_text_bytes);
    if (!text) throw engine::bad_input("--data: " + text.error().message);
    return *std::move(text);
}

/// The asked facts stand at evenly spread depths, so that a policy which forgets some part is found out.
eval::task make_questions(const arguments& a, const engine::tokenizer& words, std::size_t context) {
    const std::string prose = read_prose(a.data);
    const engine::document_writer writer(words, prose);
    eval::task task;
    task.name = "questions about documents";
    for (std::size_t i = 0; i < a.questions; ++i) {
        engine::document_plan plan = a.document;
        plan.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(a.questions);
        plan.seed = a.document.seed * 1000003 + i; // seeds one apart share no document
        const auto text = writer.write(plan);
        eval::example& e = task.examples.emplace_back();
        e.tokens = words.encode(text.prompt);
        e.prefill = engine::question_begin(words, e.tokens);
        e.answer = text.answer;
        e.most_answer_tokens = most_answer_tokens;
        require(e.tokens.size() + most_answer_tokens <= context,
                "--tokens: a prompt of " + std::to_string(e.tokens.size()) +
                    " tokens and its answer are longer " + "than the model's context of " +
                    std::to_string(context));
    }
    return task;
}

eval::task make_text(const arguments& a, const engine::tokenizer& words, std::size_t context) {
    const std::size_t most = std::min(a.nll_tokens, context);
    require(most >= 3, "--nll-tokens is " + std::to_string(a.nll_tokens) + "; valid: 0, or 3 or more");
    require(a.nll_prefill >= 1 && a.nll_prefill + 2 <= most,
            "--nll-prefill is " + std::to_string(a.nll_prefill) + "; valid: 1 to " +
                std::to_string(most - 2) + ", 2 less than --nll-tokens");
    eval::task_options options{.prose_file = a.data, .limit = 1};
    options.nll_prefill = a.nll_prefill;
    options.nll_tokens = a.nll_tokens;
    eval::task task = eval::make_task("nll:builtin", words, context, options);
    task.name = "running text";
    return task;
}

/// Where a paper's number was chosen for models of 32 layers, the one in proportion to the 6 of tiny-2k.
std::vector<engine::setting> proportions() {
    return {{"dynamickv", "budget", "interval", "1"}}; // of 4: with all layers provisional, nothing is saved
}

double mib(double bytes) {
    return bytes / (1 << 20);
}

/// What a policy did: both rows say the same when it could not run.
struct line {
    eval::row needle;
    eval::row text; ///< of --nll-tokens 0: nothing in it
};

std::string cell(const std::optional<double>& value, const char* format, double unit = 1) {
    if (!value) return "-";
    char text[64];
    std::snprintf(text, sizeof text, format, *value / unit);
    return text;
}

/// "64, 96 or 128"
std::string either(const std::vector<std::size_t>& numbers) {
    std::string text;
    for (std::size_t i = 0; i < numbers.size(); ++i)
        text += (i == 0 ? "" : i + 1 == numbers.size() ? " or " : ", ") + std::to_string(numbers[i]);
    return text;
}

void print_head(std::FILE* out, const arguments& a, const std::vector<std::size_t>& budgets,
                const eval::task& questions, const kvtl::shape& shape) {
    std::size_t tokens = 0, decoded = 0;
    for (const eval::example& e : questions.examples) {
        tokens += e.prefill;
        decoded += e.tokens.size() - e.prefill;
    }
    const double count = static_cast<double>(questions.examples.size());
    const double entry_bytes = 2.0 * 2.0 * shape.layers * shape.kv_heads * shape.head_dim; // K and V, f16
    std::fprintf(
        out,
        "%zu question%s, each about its own document of %.0f tokens (%zu fact%s in it), asked in %.0f "
        "tokens.\n"
        "A document's cache is %.2f MiB in f16; policies other than full may use %.2f MiB of memory\n"
        "and attend %s entries per head and layer.\n",
        questions.examples.size(), questions.examples.size() == 1 ? "" : "s",
        static_cast<double>(tokens) / count, a.document.facts, a.document.facts == 1 ? "" : "s",
        static_cast<double>(decoded) / count, mib(entry_bytes * static_cast<double>(tokens) / count),
        a.memory_mib, either(budgets).c_str());
    if (a.nll_tokens != 0)
        std::fprintf(out, "Perplexity: of %zu tokens of prose, %zu of them read beforehand; full is 1.\n",
                     a.nll_tokens, a.nll_prefill);
    std::fprintf(out, "\n%-22s %8s %10s %10s %10s %11s %8s %8s\n", "policy", "accuracy", "perplexity",
                 "KV memory", "KiB/token", "reads/token", "hit rate", "tokens/s");
    std::fflush(out);
}

void print_line(std::FILE* out, const line& l) {
    const eval::row& r = l.needle;
    if (r.error) { // its first line; the rest lists the parts of a bound, and the last one says what helps
        const std::size_t first = r.error->find('\n'), last = r.error->rfind('\n');
        std::fprintf(out, "%-22s %s\n", r.policy.c_str(), r.error->substr(0, first).c_str());
        if (last != std::string::npos) std::fprintf(out, "%-22s %s\n", "", r.error->substr(last + 1).c_str());
        return;
    }
    std::fprintf(out, "%-22s %8s %10s %6s MiB %10s %11s %8s %8s\n", r.policy.c_str(),
                 cell(r.accuracy, "%.2f").c_str(), cell(perplexity_ratio(l.text), "%.3f").c_str(),
                 cell(r.resident_bytes_peak, "%.2f", 1 << 20).c_str(),
                 cell(r.read_bytes_per_token, "%.1f", 1024).c_str(), cell(r.reads_per_token, "%.1f").c_str(),
                 cell(r.hit_rate, "%.2f").c_str(), cell(r.tokens_per_s, "%.1f").c_str());
}

std::string to_json(const arguments& a, const std::vector<line>& lines) {
    using json = nlohmann::ordered_json;
    const auto value = [](const auto& optional) { return optional ? json(*optional) : json(); };
    json all = json::array();
    for (const auto& [r, text] : lines) {
        json parts, shares; // null where it did not run
        for (const auto& [name, bytes] : r.bytes_by_part) parts[name] = bytes;
        for (const auto& [name, share] : engine::shares_of({r.bytes_by_part, r.raw_cache_bytes}))
            shares[name] = share;
        all.push_back({{"policy", r.policy},
                       {"task", "needle"},
                       {"questions", a.questions},
                       {"attend_tokens", r.attend_tokens},
                       {"memory_mib", a.memory_mib},
                       {"error", value(r.error)},
                       {"accuracy", value(r.accuracy)},
                       {"nll", value(text.nll)},
                       {"nll_full", value(text.nll_full)},
                       {"perplexity_ratio", value(perplexity_ratio(text))},
                       {"resident_bytes_peak", value(r.resident_bytes_peak)},
                       {"read_bytes_per_token", value(r.read_bytes_per_token)},
                       {"useful_bytes_per_token", value(r.useful_bytes_per_token)},
                       {"reads_per_token", value(r.reads_per_token)},
                       {"mean_read_entries", value(r.mean_read_entries)},
                       {"hit_rate", value(r.hit_rate)},
                       {"tokens_per_s", value(r.tokens_per_s)},
                       {"prefill_s", value(r.prefill_s)},
                       {"decoded_tokens", r.decoded_tokens},
                       {"bytes_by_part", parts},
                       {"raw_cache_bytes", r.raw_cache_bytes == 0 ? json() : json(r.raw_cache_bytes)},
                       {"share_by_part", shares},
                       {"io", r.io},
                       {"direct", r.direct}});
    }
    return all.dump(1);
}

std::string device_of(const std::vector<line>& lines) {
    for (const auto& [r, text] : lines)
        if (!r.error && r.io != "memory") return r.io + (r.direct ? ", O_DIRECT" : "");
    return "memory";
}

std::string report_of(const arguments& a, const std::vector<line>& lines) {
    eval::report report;
    report.title = "KV cache policies under one bound";
    report.facts = a.facts;
    for (auto& fact : std::vector<std::pair<std::string, std::string>>{
             {"model", std::filesystem::path(a.model).filename().string()},
             {"memory of a cache", cell(a.memory_mib, "%g MiB (full is exempt)")},
             {"seed", std::to_string(a.document.seed)},
             {"program", std::string(program) + " " + KVTL_VERSION_STRING},
             {"device", device_of(lines)}})
        report.facts.push_back(std::move(fact));
    for (const line& l : lines) report.rows.push_back(l.needle);
    if (a.nll_tokens != 0)
        for (const line& l : lines) report.rows.push_back(l.text);
    return eval::to_html(report);
}

void run(const arguments& a) {
    check(a);
    engine::cache_options options;
    for (const auto& text : a.settings) options.settings.push_back(engine::parse_setting(text));
    const auto policies = eval::parse_policies(a.policies);
    engine::require_running(options.settings, policies);
    const auto usual = proportions(); // of whichever policy; what was given wins
    options.settings.insert(options.settings.begin(), usual.begin(), usual.end());
    const auto budgets = engine::whole_numbers(a.attend_tokens, "--attend-tokens");
    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const eval::task questions = make_questions(a, words, model.hyper().context);
    std::optional<eval::task> text;
    if (a.nll_tokens != 0) text = make_text(a, words, model.hyper().context);

    options.shape = model.hyper().shape;
    options.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    options.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    options.max_tokens = std::max(questions.most_tokens(), text ? text->most_tokens() : 0);
    options.memory_bytes = static_cast<std::size_t>(a.memory_mib * (1 << 20));
    options.attend_tokens = budgets.front();
    options.shards = std::min(2U, options.shape.kv_heads);
    options.io = a.io;
    options.path = a.kv_path;
    options.calibration = a.calibration.empty() ? engine::calibration_beside(a.model) : a.calibration;
    options.fingerprint = engine::fingerprint_of(model);
    options.fit = true;
    options.time_phases = true;
    std::vector<eval::task> tasks{questions};
    if (text) tasks.push_back(*text);
    options.prefill_tokens = eval::longest_prompt(tasks);
    std::vector<eval::contender> contenders;
    for (const std::size_t budget : budgets)
        for (const auto& policy : policies) {
            contenders.push_back({.options = options, .error = {}});
            contenders.back().options.policy = policy;
            contenders.back().options.attend_tokens = budget;
            if (policy == "full") contenders.back().options.io = "memory"; // it has no file
        }
    const auto wants = eval::try_all(contenders, options.io, program, tasks);
    eval::require_any(contenders, policies);

    std::FILE* const out = a.json_file == "-" ? stderr : stdout;
    print_head(out, a, budgets, questions, options.shape);

    // Threads inherit what is held back: only this one takes the ending signals, and so never while it opens
    // a file.
    engine::thread_pool pool = [&] {
        const engine::signal_hold hold;
        return engine::thread_pool(a.threads);
    }();
    eval::evaluator evaluator(model, words, pool, options, wants, program);
    std::vector<line> lines;
    for (auto& r : eval::run_task(evaluator, questions, contenders, false))
        lines.push_back({std::move(r), {}});
    if (text) {
        auto rows = eval::run_task(evaluator, *text, contenders, false);
        for (std::size_t i = 0; i < rows.size(); ++i) lines[i].text = std::move(rows[i]);
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (budgets.size() > 1 && i % policies.size() == 0)
            std::fprintf(out, "%sattending %zu entries:\n", i == 0 ? "" : "\n",
                         lines[i].needle.attend_tokens);
        print_line(out, lines[i]);
    }
    std::vector<const eval::row*> answers, texts;
    std::vector<eval::row> last; // what the memory is for hardly depends on the budget
    for (const line& l : lines) {
        answers.push_back(&l.needle);
        texts.push_back(&l.text);
        if (l.needle.attend_tokens == budgets.back()) last.push_back(l.needle);
    }
    std::vector<std::string> says = eval::conclusions(answers);
    for (std::string& sentence : eval::conclusions(texts)) says.push_back(std::move(sentence));
    eval::print_sentences(out, "What this shows:", says);
    eval::print_memory(out, last);
    std::fprintf(out, "\nKiB, reads, hit rate and tokens/s are those of decoding. The cache was %s%s.\n",
                 device_of(lines) == "memory" ? "in " : "a file: ", device_of(lines).c_str());
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(a, lines));
    if (!a.html_file.empty()) {
        engine::write_output(a.html_file, report_of(a, lines));
        std::fprintf(out, "Plots: %s\n", a.html_file.c_str());
    }
    eval::require_finished(contenders);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        a.facts = engine::report_facts(argc, argv);
        CLI::App app(
            "Asks questions about documents that are longer than the cache's memory, once per policy.",
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
