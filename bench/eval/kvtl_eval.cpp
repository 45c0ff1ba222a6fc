// kvtl-eval: how much of a model's quality each policy keeps, and what that costs.
//
//   kvtl-eval tiny-2k.gguf --policies dynakv,quest --attend-tokens 64,128,256
//             --task needle:gen --task nll:builtin --html report.html
//
//   kvtl-eval tiny-2k.gguf --memory-mib 3 --leaderboard bench/results/data/leaderboard.json
//             a list of presets on generated questions and text; appends its rows (scripts/results.py makes the page)
//
// Every example passes through the full model once; its prompt is then replayed to every policy at every
// budget (evaluator.hpp says what is measured how). The reference lines full, streaming_llm (or
// sink_and_window), random_units and oracle are always run, as far as they are built in. A policy that cannot
// be opened says why in its row; that is an error only when no policy that was named can. Exit status: 0, 2
// for what can never work (bad usage, unreadable file, impossible value), 1 for a run that fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "cleanup.hpp"
#include "command_line.hpp"
#include "commit.hpp"
#include "contenders.hpp"
#include "csv.hpp"
#include "error.hpp"
#include "evaluator.hpp"
#include "fingerprint.hpp"
#include "gguf.hpp"
#include "input_file.hpp"
#include "lookahead.hpp"
#include "memory_report.hpp"
#include "model_choice.hpp"
#include "program.hpp"
#include "report_facts.hpp"
#include "report_html.hpp"
#include "row.hpp"
#include "run_header.hpp"
#include "tasks.hpp"
#include "tuned_file.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace {

using engine::require;

constexpr const char* program = "kvtl-eval";

/// What --leaderboard compares where nothing else is named. Settings are chosen on seed 1; the board has seed 2.
constexpr const char* leaderboard_policies =
    "full,full_int8,dynakv,dynakv_estimate,kvtl_best,kvswap,kvswap_softmax,"
    "quest,clusterkv,retroinfer,infllm,sparq,snapkv_group,"
    "dynamickv,adakv,h2o,streaming_llm";
const std::vector<std::string> leaderboard_tasks = {"needle:gen,tokens=1000,count=200,seed=2",
                                                    "facts:gen,tokens=1000,count=200,seed=2",
                                                    "chain:gen,tokens=1000,count=200,seed=2", "nll:builtin"};

struct arguments {
    std::string model;
    std::string policies = "all";
    std::string attend_tokens = "256";
    std::string keep_tokens;
    std::vector<std::string> tasks;
    std::string io = "uring";
    std::string kv_path = "./kvtl-eval-" + std::to_string(::getpid()) + ".kv";
    std::string calibration;
    std::string gates;
    std::string votes;
    std::string share_layers;
    std::string probe{engine::default_probe};
    std::string lookahead;
    bool probe_true = false;
    std::size_t probe_earlier = 0;
    kvtl::episodes_config episodes{.medoids = 1};
    std::string json_file;
    std::string csv_file;
    std::string html_file;
    std::string leaderboard;
    double memory_mib = 64;
    unsigned threads = 2;
    bool closed_only = false;
    bool no_fit = false;
    bool least_memory = false;
    bool list_policies = false;
    std::vector<std::string> settings;
    std::string tuned;
    eval::task_options task{.prose_file = KVTL_PROSE_FILE};
    std::vector<std::pair<std::string, std::string>> facts; ///< of this run
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    engine::define_model(app, a.model, "GGUF file");
    app.add_option(
           "--task", a.tasks,
           "what to measure on (repeatable): needle:FILE.jsonl (lines {\"prompt\", \"answer\"}), "
           "needle:gen[,tokens=2000,keys=1,queries=1,count=50,seed=1], facts:gen (keys=8), "
           "turns:gen (keys=8, turns=4, each counts), table:gen[,tokens=2000,keys=8,rows=8,count=50,seed=1], "
           "dialogue:gen[,tokens=2000,keys=16,topics=4,count=50,seed=1], "
           "chain:gen[,tokens=2000,keys=1,links=2,count=50,seed=1], nll:FILE.txt, nll:builtin "
           "(default: needle:gen and nll:builtin)")
        ->allow_extra_args(false);
    app.add_option("--policies", a.policies, "names separated by commas, or all; reference lines are added")
        ->capture_default_str();
    app.add_flag("--list-policies", a.list_policies, "print the presets that are built in");
    app.add_option("--attend-tokens", a.attend_tokens, "entries each head attends per step: one or several")
        ->capture_default_str();
    app.add_option(
        "--keep-tokens", a.keep_tokens,
        "entries per head that survive where policies evict, one or several (default: as many as are "
        "attended)");
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache in MiB (full is exempt)")
        ->capture_default_str();
    app.add_flag("--no-fit", a.no_fit, "keep the sizes of the papers instead of those that fit the memory");
    app.add_flag("--least-memory", a.least_memory,
                 "print the smallest memory that each policy can be opened with (its sizes as they are, not "
                 "made to fit), and end");
    app.add_option("--calibration", a.calibration,
                   "file of bases for policies that need one (default: MODEL.cal beside the model)");
    app.add_option("--gates", a.gates,
                   "file of gates for policies that need them (default: what ships with the model)");
    app.add_option("--votes", a.votes,
                   "file of the heads that retrieve and of layers' importance, for policies that use them "
                   "(kvtl-calibrate --votes "
                   "writes one; default: all vote)");
    app.add_option("--share-layers", a.share_layers,
                   std::string(engine::share_layers_help) +
                       ". Logits are compared with those of the model whose layers share nothing");
    app.add_option("--probe", a.probe,
                   "text that imitates what follows a prompt, for policies that look ahead")
        ->capture_default_str();
    app.add_option("--lookahead", a.lookahead,
                   "file of a trained lookahead (bench/train_gates) instead of the probe's text");
    app.add_flag("--probe-true", a.probe_true,
                 "use the text that really follows the prompt as the probe: a perfect guess");
    app.add_option("--probe-earlier", a.probe_earlier,
                   "rotate the probe's queries back by so many positions, for a comparison");
    app.add_option(
           "--episodes", a.episodes.episodes,
           "episodes of a dialogue, each with a cache of its own; 1: one probe for the whole dialogue")
        ->capture_default_str();
    app.add_option("--medoids", a.episodes.medoids, "windows of utterances that make an episode's probe")
        ->capture_default_str();
    app.add_option(
           "--set", a.settings,
           "POLICY.SLOT.FIELD=VALUE: change a policy's config (repeatable); several values, separated by "
           "commas: a line for each")
        ->allow_extra_args(false);
    app.add_option("--tuned", a.tuned, "what kvtl-tune --json wrote: settings of kvswap; --set changes them");
    app.add_option("--limit", a.task.limit, "most examples of a task; 0: all")->capture_default_str();
    app.add_option("--nll-prefill", a.task.nll_prefill, "tokens of a piece of text that are prefilled")
        ->capture_default_str();
    app.add_option("--nll-tokens", a.task.nll_tokens, "tokens of a piece of text")->capture_default_str();
    app.add_option("--needle-prefill", a.task.needle_prefill,
                   "prefill only so many tokens of a prompt and decode the rest; 0: up to the question")
        ->capture_default_str();
    app.add_flag("--question-aware", a.task.question_aware, "prefill the question with the document");
    app.add_flag("--closed-only", a.closed_only,
                 "skip the open loop: half the time, without output_error and mass_recall");
    app.add_option("--prose", a.task.prose_file,
                   "text of generated questions and nll:builtin (default: the project's)");
    app.add_option("--kv-path", a.kv_path, "file of the cache (default ./kvtl-eval-PID.kv)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
    app.add_option("--csv", a.csv_file, "write the rows as comma-separated values; - for standard output");
    app.add_option("--html", a.html_file, "write a report with plots");
    app.add_option(
        "--leaderboard", a.leaderboard,
        "append the rows, with model, commit, machine and command, to a file as --json writes them; without "
        "--policies and --task: a list of about 15 presets, 200 questions each of three kinds, and text");
    for (const char* name : {"--limit", "--nll-prefill", "--nll-tokens", "--needle-prefill", "--threads",
                             "--probe-earlier", "--episodes", "--medoids"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) // the last one counts, so that scripts can have defaults
        if (option->get_name() != "--set" && option->get_name() != "--task")
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.footer(
        "output_error and mass_recall are measured open loop: the policy is fed the full model's q, k "
        "and v of\nevery decoded token. Everything else is measured closed loop: the policy's own "
        "outputs flow on through the\nmodel. Bytes, reads and times are those of decoding. An answer is "
        "right when the text, without spaces, begins\nwith the expected one. Reference lines that were not "
        "named get the memory they need.");
}

void check(const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(a.threads >= 1 && a.threads <= 256, "--threads: valid: 1 to 256");
    require(!a.probe.empty(), "--probe: the text is empty");
    require(a.episodes.episodes >= 1, "--episodes: valid: 1 and more");
    require(a.episodes.medoids >= 1, "--medoids: valid: 1 and more");
    require(a.lookahead.empty() || !a.probe_true, "--lookahead: valid: without --probe-true");
    require(!a.probe_true || !a.task.question_aware,
            "--probe-true: nothing follows what is prefilled; valid: without --question-aware");
    require(!a.kv_path.empty() || a.io == "memory", "--kv-path: the path is empty");
    engine::require_io(a.io);
    engine::require_writable(a.json_file, "--json");
    engine::require_writable(a.csv_file, "--csv");
    require(a.csv_file != "-" || a.json_file != "-", "--csv: - is standard output, which --json has already");
    require(a.csv_file.empty() || !a.least_memory, "--csv: valid: without --least-memory");
    engine::require_writable(a.html_file, "--html");
    engine::require_writable(a.leaderboard, "--leaderboard");
    require(a.leaderboard != "-", "--leaderboard: rows are appended to a file; --json - prints them");
    require(a.html_file != "-", "--html: a report needs a file");
}

bool has(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

/// What --set makes of a policy, once for every combination of the values that it was given. Of several for one field the
/// last counts, as everywhere.
struct variant {
    std::vector<engine::setting> settings;
    std::string name; ///< of the fields with several values: "rate=.20"
};

std::vector<variant> variants_of(const std::string& policy, const std::vector<engine::setting>& settings) {
    std::vector<variant> all(1);
    for (auto at = settings.begin(); at != settings.end(); ++at) {
        const engine::setting& s = *at;
        const bool changed_later = std::any_of(at + 1, settings.end(), [&](const engine::setting& later) {
            return later.policy == s.policy && later.slot == s.slot && later.field == s.field;
        });
        if (s.policy != policy || changed_later) continue;
        const auto values = engine::parts_of(s.value);
        std::vector<variant> longer;
        for (const variant& v : all)
            for (const auto& value : values) {
                longer.push_back(v);
                longer.back().settings.push_back({s.policy, s.slot, s.field, value});
                if (values.size() > 1)
                    longer.back().name += (v.name.empty() ? "" : " ") + s.field + "=" + value;
            }
        all = std::move(longer);
    }
    return all;
}

/// Who takes part, in the order of the lines: the references first.
class line_up {
  public:
    line_up(const engine::cache_options& options, std::vector<std::size_t> attend,
            std::vector<std::size_t> keep, const std::vector<eval::task>& tasks, bool open)
        : options_(options), attend_(std::move(attend)), keep_(std::move(keep)), tasks_(tasks), open_(open) {}

    /// A policy with all its settings at every budget that it has, once. Returns whether it can be opened at all of them.
    bool add(const std::string& policy, bool reference) {
        if (!eval::built_in(policy) || has(policies_, policy)) return true;
        policies_.push_back(policy);
        std::vector<eval::contender> own;
        const auto variants = variants_of(policy, options_.settings);
        const auto add_budget = [&](std::size_t attend, std::size_t keep) {
            for (const variant& v : variants) {
                engine::cache_options o = options_;
                o.policy = policy;
                o.settings = v.settings;
                o.attend_tokens = attend;
                o.keep_tokens = keep;
                if (policy == "full") o.io = "memory"; // it has no file
                own.push_back(
                    {.options = std::move(o), .reference = reference, .variant = v.name, .error = {}});
            }
        };
        const engine::cache_wants budgets = engine::policy_wants(policy);
        if (!budgets.evicts || keep_.empty()) // what would survive is what is attended
            for (const std::size_t n : attend_) add_budget(n, 0);
        else if (!budgets.retrieves) // what survives is attended
            for (const std::size_t n : keep_) add_budget(n, n);
        else
            for (const std::size_t n : attend_)
                for (const std::size_t m : keep_) add_budget(n, m);
        const engine::cache_wants more =
            open_ ? eval::try_all(own, options_.io, program, tasks_) : engine::cache_wants{};
        wants.inputs = wants.inputs | more.inputs;
        wants.prefetch = wants.prefetch || more.prefetch;
        contenders.insert(contenders.end(), own.begin(), own.end());
        return std::all_of(own.begin(), own.end(), [](const auto& c) { return c.error.empty(); });
    }

    [[nodiscard]] const std::vector<std::string>& policies() const { return policies_; }

    std::vector<eval::contender> contenders;
    engine::cache_wants wants; ///< of all of them

  private:
    engine::cache_options options_;
    std::vector<std::size_t> attend_, keep_;
    const std::vector<eval::task>& tasks_;
    bool open_; ///< false: they are only listed
    std::vector<std::string> policies_;
};

std::string cell(const std::optional<double>& value, const char* format, double unit = 1) {
    if (!value) return "-";
    char text[32];
    std::snprintf(text, sizeof text, format, *value / unit);
    return text;
}

void print_rows(std::FILE* out, const std::vector<eval::row>& rows) {
    std::size_t examples = 0, width = 24;
    for (const eval::row& r : rows) {
        examples = std::max(examples, r.examples);
        width = std::max(width, eval::line_of(r).size());
    }
    const auto name = [width](std::string text) {
        text.resize(std::max(width, text.size()), ' ');
        return text;
    };
    const std::string& question = rows.front().question;
    std::fprintf(out, "\n%s: %zu example%s%s%s\n", rows.front().task.c_str(), examples,
                 examples == 1 ? "" : "s", question.empty() ? "" : ", question ", question.c_str());
    std::fprintf(out, "%s %6s %6s %8s %9s %8s %6s %8s %7s %9s %8s %8s %6s\n", name("policy").c_str(),
                 "attend", "keep", "accuracy", "nll", "kl", "top-1", "o error", "mass", "KiB/token",
                 "hit rate", "tokens/s", "choose");
    for (const eval::row& r : rows) {
        const std::string keep = r.keep_tokens ? std::to_string(*r.keep_tokens) : "-";
        if (r.error) {
            std::fprintf(out, "%s %6zu %6s %s\n", name(eval::line_of(r)).c_str(), r.attend_tokens,
                         keep.c_str(), r.error->c_str());
            continue;
        }
        std::fprintf(out, "%s %6zu %6s %8s %9s %8s %6s %8s %7s %9s %8s %8s %6s\n",
                     name(eval::line_of(r)).c_str(), r.attend_tokens, keep.c_str(),
                     cell(r.accuracy, "%.2f").c_str(), cell(r.nll, "%.4f").c_str(),
                     cell(r.kl, "%.4f").c_str(), cell(r.top1_agreement, "%.3f").c_str(),
                     cell(r.output_error, "%.4f").c_str(), cell(r.mass_recall, "%.4f").c_str(),
                     cell(r.read_bytes_per_token, "%.1f", 1024).c_str(), cell(r.hit_rate, "%.2f").c_str(),
                     cell(r.tokens_per_s, "%.0f").c_str(), cell(r.selectable_entries, "%.0f").c_str());
    }
    std::fflush(out);
}

void print_least(const std::vector<eval::contender>& all, const std::string& json_file) {
    std::vector<engine::least_row> rows;
    for (const eval::contender& c : all) {
        std::string with = std::to_string(c.options.attend_tokens) + " attended";
        if (c.options.keep_tokens != 0) with += ", " + std::to_string(c.options.keep_tokens) + " kept";
        if (!c.variant.empty()) with += ", " + c.variant;
        rows.push_back({c.options.policy, with, engine::least_memory(c.options)});
    }
    engine::print_least(rows, json_file);
}

void print_header(const arguments& a, const kvtl::shape& shape, const std::vector<std::string>& named,
                  const std::vector<eval::contender>& all) {
    const auto on_file = std::find_if(all.begin(), all.end(), [](const eval::contender& c) {
        return c.error.empty() && c.options.io != "memory";
    });
    engine::print_header(program, {.model = a.model,
                                   .shape = shape,
                                   .policies = named,
                                   .memory_mib = {a.memory_mib},
                                   .device = on_file == all.end() ? "memory" : on_file->options.io,
                                   .threads = a.threads});
}

std::string report_of(const arguments& a, const std::vector<eval::row>& rows) {
    eval::report report;
    report.title = "Quality and cost of KV cache policies";
    report.facts = {{"model", std::filesystem::path(a.model).filename().string()},
                    {"memory of a cache", cell(a.memory_mib, "%g MiB")},
                    {"program", std::string(program) + " " + KVTL_VERSION_STRING},
                    {"probe of policies that look ahead", a.probe_true           ? "what follows"
                                                          : !a.lookahead.empty() ? a.lookahead
                                                                                 : a.probe}};
    const auto on_file =
        std::find_if(rows.begin(), rows.end(), [](const auto& r) { return !r.error && r.io != "memory"; });
    report.facts.emplace_back("device", on_file == rows.end() ? "memory"
                                        : on_file->direct     ? on_file->io + ", O_DIRECT"
                                                              : on_file->io);
    report.facts.insert(report.facts.end(), a.facts.begin(), a.facts.end());
    report.rows = rows;
    return eval::to_html(report);
}

/// What --leaderboard appends to: looked at before anything runs, and again at the end, because runs may share a file.
std::string read_board(const std::string& file) {
    if (!std::filesystem::exists(file) || std::filesystem::file_size(file) == 0) return {};
    auto text = engine::read_input(file, engine::most_text_bytes);
    require(text.ok(), "--leaderboard: " + (text.ok() ? "" : text.error().message));
    static_cast<void>(eval::append_json(*text, file, {}, {}));
    return *std::move(text);
}

/// The presets of the board that are built in, and its tasks, where none were named.
void set_leaderboard(arguments& a, const CLI::App& app) {
    if (a.leaderboard.empty()) return;
    if (app.count("--policies") == 0) {
        a.policies.clear();
        for (const auto& name : engine::parts_of(leaderboard_policies))
            if (eval::built_in(name)) a.policies += (a.policies.empty() ? "" : ",") + name;
    }
    if (a.tasks.empty()) a.tasks = leaderboard_tasks;
}

void run(const arguments& a) {
    check(a);
    engine::cache_options options;
    for (const auto& text : a.settings) {
        options.settings.push_back(engine::parse_setting(text));
        for (const auto& value : engine::parts_of(options.settings.back().value))
            require(!value.empty(), "--set " + text + ": a value is empty");
    }
    if (!a.leaderboard.empty()) static_cast<void>(read_board(a.leaderboard));
    const auto named = eval::parse_policies(a.policies);
    const auto attend = engine::whole_numbers(a.attend_tokens, "--attend-tokens");
    const auto keep = a.keep_tokens.empty() ? std::vector<std::size_t>{}
                                            : engine::whole_numbers(a.keep_tokens, "--keep-tokens");
    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    std::vector<eval::task> tasks;
    for (const auto& name : a.tasks.empty() ? std::vector<std::string>{"needle:gen", "nll:builtin"} : a.tasks)
        tasks.push_back(eval::make_task(name, words, model.hyper().context, a.task));

    options.shape = model.hyper().shape;
    options.owner = engine::owners_of(a.share_layers, options.shape.layers);
    options.rope_frequencies.assign(model.rope_frequencies().begin(), model.rope_frequencies().end());
    options.rope_neighbours = model.hyper().pairing == engine::rope_pairing::neighbours;
    for (const auto& t : tasks) options.max_tokens = std::max(options.max_tokens, t.most_tokens());
    options.prefill_tokens = eval::longest_prompt(tasks);
    const auto tuned = engine::tuned_settings(a.tuned, named, options.shape, 1, options.max_tokens);
    options.settings.insert(options.settings.begin(), tuned.begin(), tuned.end());
    options.memory_bytes = static_cast<std::size_t>(a.memory_mib * (1 << 20));
    options.shards = std::min(a.threads, options.shape.kv_heads);
    options.io = a.io;
    options.path = a.kv_path;
    options.calibration = a.calibration.empty() ? engine::calibration_beside(a.model) : a.calibration;
    options.fingerprint = engine::fingerprint_of(model);
    options.gates = a.gates;
    options.votes = a.votes;
    options.fit = !a.no_fit;
    options.engine_inputs = engine::model_file_inputs | kvtl::engine_input::external; // eval/foresight.hpp
    options.time_phases = true;
    options.attend_tokens = attend.front();

    require(eval::built_in("full"), "the policy full, which all others are compared with, is not built in");
    line_up lines(options, attend, keep, tasks, !a.least_memory);
    if (a.least_memory) {
        for (const auto& policy : named) lines.add(policy, false);
        engine::require_running(options.settings, lines.policies());
        print_least(lines.contenders, a.json_file);
        return;
    }
    const auto add_reference = [&](const char* policy) {
        return lines.add(policy, a.policies == "all" || !has(named, policy));
    };
    add_reference("full");
    if (!add_reference("streaming_llm")) add_reference("sink_and_window");
    add_reference("random_units");
    add_reference("oracle");
    for (const auto& policy : named) lines.add(policy, false);
    engine::require_running(options.settings, lines.policies());
    eval::require_any(lines.contenders, named);

    // Threads inherit what is held back: only this one takes the ending signals, and so never while it opens
    // a file.
    engine::thread_pool pool = [&] {
        const engine::signal_hold hold;
        return engine::thread_pool(a.threads);
    }();
    const engine::trained_lookahead ahead = a.lookahead.empty()
                                                ? engine::trained_lookahead{}
                                                : engine::insist(engine::read_lookahead(a.lookahead, model));
    eval::evaluator evaluator(model, words, pool, options, lines.wants, program);
    evaluator.look_ahead(a.probe_true ? "" : a.probe, a.probe_earlier);
    if (!a.lookahead.empty()) evaluator.look_ahead(ahead);
    evaluator.divide(a.episodes);
    print_header(a, options.shape, named, lines.contenders);
    std::FILE* const out = a.json_file == "-" || a.csv_file == "-" ? stderr : stdout;
    std::vector<eval::row> rows;
    for (const eval::task& t : tasks) {
        const auto more = eval::run_task(evaluator, t, lines.contenders, !a.closed_only);
        print_rows(out, more);
        eval::print_starved(out, more);
        eval::print_memory(out, more);
        rows.insert(rows.end(), more.begin(), more.end());
    }
    if (!a.json_file.empty()) engine::write_output(a.json_file, eval::to_json(rows));
    if (!a.leaderboard.empty()) {
        auto facts = a.facts;
        facts.insert(facts.begin(), {{"model", std::filesystem::path(a.model).filename().string()},
                                     {"commit", KVTL_COMMIT}});
        engine::write_output(a.leaderboard,
                             eval::append_json(read_board(a.leaderboard), a.leaderboard, rows, facts));
    }
    if (!a.csv_file.empty()) engine::write_output(a.csv_file, engine::to_csv(eval::to_json(rows)));
    if (!a.html_file.empty()) engine::write_output(a.html_file, report_of(a, rows));
    eval::require_finished(lines.contenders);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        a.facts = engine::report_facts(argc, argv);
        CLI::App app("Measures how much of a model's quality KV cache policies keep, and what it costs.",
                     program);
        define_options(app, a);
        if (const auto status = engine::parse_command_line(app, argc, argv)) return *status;
        set_leaderboard(a, app);
        if (a.list_policies)
            engine::print_policies();
        else
            run(a);
        return 0;
    });
}
