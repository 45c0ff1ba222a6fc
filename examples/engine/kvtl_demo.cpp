// kvtl-demo: how well, and at what cost, policies answer questions about a document longer than their memory.
//
//   kvtl-demo -m tiny-2k.gguf --data prose.txt --questions 20 --memory-mib 3
//
// Every question has its own document. The document is prefilled; the question is then decoded token by
// token, so that no policy sees it while it organises the document, and what it needs has to come back from
// the cache file. Every policy gets the same documents and questions. Exit status: 0, 2 for what can never
// work (bad usage, unreadable file, impossible value), 1 for a run that fails midway.
// SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "cleanup.hpp"
#include "demo_document.hpp"
#include "error.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "model.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "sampler.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace {

using engine::bad_input;
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
    std::string json_file;
    std::size_t questions = 20;
    std::size_t attend_tokens = 256;
    double memory_mib = 3;
    unsigned threads = 2;
    bool list_policies = false;
    std::vector<std::string> settings;
    engine::document_plan document;
};

struct question {
    std::vector<engine::token_id> prompt;
    std::size_t document_tokens = 0; ///< what is prefilled; the rest of the prompt is decoded
    std::string answer;
};

struct row {
    std::string policy;
    std::size_t questions = 0;
    std::size_t right = 0;
    std::size_t steps = 0; ///< decoded tokens; seconds, bytes and reads below are theirs
    double seconds = 0;
    std::uint64_t read_bytes = 0;
    std::uint64_t useful_bytes = 0;
    std::uint64_t reads = 0;
    double prefill_seconds = 0;
    engine::cache_stats stats; ///< of the whole run

    [[nodiscard]] double accuracy() const {
        return static_cast<double>(right) / static_cast<double>(questions);
    }
    [[nodiscard]] double per_token(std::uint64_t count) const {
        return static_cast<double>(count) / static_cast<double>(steps);
    }
    [[nodiscard]] double tokens_per_s() const {
        return seconds > 0 ? static_cast<double>(steps) / seconds : 0;
    }
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    app.add_option("-m,--model", a.model, "GGUF file of a model that knows the questions (tiny-2k)");
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
    app.add_option("--attend-tokens", a.attend_tokens, "entries each head attends per step")
        ->capture_default_str();
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache in MiB (full is exempt)")
        ->capture_default_str();
    app.add_option("--kv-path", a.kv_path, "file of the cache (default ./kvtl-demo-PID.kv)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--json", a.json_file, "write the rows as JSON; - for standard output");
    for (const char* name : {"--questions", "--tokens", "--facts", "--seed", "--attend-tokens", "--threads"})
        app.get_option(name)->check(engine::whole_number);
    for (auto* option : app.get_options()) // the last one counts, so that scripts can have defaults
        if (option->get_name() != "--set") option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::vector<std::string> chosen_policies(const std::string& list) {
    std::vector<std::string> chosen;
    if (list == "all") {
        for (const auto name : engine::policy_names()) chosen.emplace_back(name);
        return chosen;
    }
    std::istringstream names(list + ',');
    for (std::string name; std::getline(names, name, ',');) {
        engine::require_policy(name, "--policies");
        chosen.push_back(name);
    }
    return chosen;
}

void check(const arguments& a) {
    require(!a.model.empty(), "no model: give one with -m FILE");
    require(!a.data.empty(), "no prose: give it with --data FILE");
    require(a.questions >= 1 && a.questions <= 100000, "--questions: valid: 1 to 100000");
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(a.attend_tokens > 0, "--attend-tokens: valid: 1 or more");
    require(a.threads >= 1 && a.threads <= 256, "--threads: valid: 1 to 256");
    require(!a.kv_path.empty() || a.io == "memory", "--kv-path: the path is empty");
    engine::require_io(a.io);
    engine::require_writable(a.json_file, "--json");
}

std::string read_prose(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    require(in.is_open() && !std::filesystem::is_directory(path), "--data: cannot read " + path);
    return {std::istreambuf_iterator<char>(in), {}};
}

/// The asked facts stand at evenly spread depths, so that a policy which forgets some part is found out.
std::vector<question> make_questions(const arguments& a, const engine::tokenizer& words,
                                     std::size_t context) {
    const std::string prose = read_prose(a.data);
    const engine::document_writer writer(words, prose);
    std::vector<question> all;
    for (std::size_t i = 0; i < a.questions; ++i) {
        engine::document_plan plan = a.document;
        plan.depth = (static_cast<double>(i) + 0.5) / static_cast<double>(a.questions);
        plan.seed = a.document.seed * 1000003 + i; // seeds one apart share no document
        const auto text = writer.write(plan);
        question& q = all.emplace_back();
        q.prompt = words.encode(text.prompt);
        q.document_tokens = engine::question_begin(words, q.prompt);
        q.answer = text.answer;
        require(q.prompt.size() + most_answer_tokens <= context,
                "--tokens: a prompt of " + std::to_string(q.prompt.size()) +
                    " tokens and its answer are longer " + "than the model's context of " +
                    std::to_string(context));
    }
    return all;
}

/// Prefills the document, decodes the question, then the answer greedily; adds what that cost to the row.
void ask(const question& q, engine::transformer& t, const engine::tokenizer& words,
         const engine::kv_cache& cache, row& r) {
    using clock = std::chrono::steady_clock;
    const auto seconds_since = [](clock::time_point start) {
        return std::chrono::duration<double>(clock::now() - start).count();
    };
    const std::span<const engine::token_id> prompt = q.prompt;
    auto start = clock::now();
    t.begin();
    (void)t.prefill(prompt.first(q.document_tokens));
    r.prefill_seconds += seconds_since(start);

    const auto before = cache.stats();
    engine::sampler greedy(0, 1);
    std::span<const float> logits;
    std::string text;
    start = clock::now();
    for (const auto token : prompt.subspan(q.document_tokens)) logits = t.step(token);
    for (std::size_t n = 1;; ++n) {
        const auto token = greedy.choose(logits);
        text += words.piece(token);
        if (engine::without_spaces(text).size() >= q.answer.size() || n == most_answer_tokens) break;
        logits = t.step(token);
    }
    r.seconds += seconds_since(start);
    const auto after = cache.stats();

    ++r.questions;
    r.right += engine::without_spaces(text).starts_with(q.answer) ? 1 : 0;
    r.steps += t.position() - q.document_tokens;
    r.read_bytes += after.read_bytes - before.read_bytes;
    r.useful_bytes += after.useful_bytes - before.useful_bytes;
    r.reads += after.reads - before.reads;
}

row run_policy(const std::string& policy, engine::cache_options& options, const engine::model& model,
               const engine::tokenizer& words, engine::thread_pool& pool,
               const std::vector<question>& questions) {
    row r;
    r.policy = options.policy = policy;
    {
        const auto cache = engine::open_or_fall_back(options, program);
        engine::transformer transformer(model, *cache, pool);
        engine::progress_bar progress(policy, questions.size());
        progress.update(0);
        for (const question& q : questions) {
            ask(q, transformer, words, *cache, r);
            progress.update(r.questions);
        }
        r.stats = cache->stats();
    }
    engine::forget_file();
    return r;
}

double mib(double bytes) {
    return bytes / (1 << 20);
}

void print_row(std::FILE* out, const row& r) {
    std::fprintf(out, "%-24s %8.2f %6.2f MiB %10.1f %12.1f %9.2f %9.1f\n", r.policy.c_str(), r.accuracy(),
                 mib(static_cast<double>(r.stats.resident_bytes_peak)), r.per_token(r.read_bytes) / 1024,
                 r.per_token(r.reads), r.stats.hit_rate, r.tokens_per_s());
    std::fflush(out);
}

std::string to_json(const arguments& a, const std::vector<row>& rows) {
    using json = nlohmann::ordered_json;
    json all = json::array();
    for (const row& r : rows)
        all.push_back({{"policy", r.policy},
                       {"task", "needle"},
                       {"questions", r.questions},
                       {"attend_tokens", a.attend_tokens},
                       {"memory_mib", a.memory_mib},
                       {"accuracy", r.accuracy()},
                       {"resident_bytes_peak", r.stats.resident_bytes_peak},
                       {"read_bytes_per_token", r.per_token(r.read_bytes)},
                       {"useful_bytes_per_token", r.per_token(r.useful_bytes)},
                       {"reads_per_token", r.per_token(r.reads)},
                       {"mean_read_entries", r.stats.mean_read_entries},
                       {"hit_rate", r.stats.hit_rate},
                       {"tokens_per_s", r.tokens_per_s()},
                       {"prefill_s", r.prefill_seconds / static_cast<double>(r.questions)},
                       {"decoded_tokens", r.steps},
                       {"io", r.stats.io},
                       {"direct", r.stats.direct}});
    return all.dump(1);
}

void run(const arguments& a) {
    check(a);
    engine::cache_options options;
    for (const auto& text : a.settings) options.settings.push_back(engine::parse_setting(text));
    const auto policies = chosen_policies(a.policies);
    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const auto questions = make_questions(a, words, model.hyper().context);

    std::size_t longest = 0, tokens = 0, decoded = 0;
    for (const question& q : questions) {
        longest = std::max(longest, q.prompt.size());
        tokens += q.document_tokens;
        decoded += q.prompt.size() - q.document_tokens;
    }
    const auto& shape = options.shape = model.hyper().shape;
    options.max_tokens = longest + most_answer_tokens;
    options.memory_bytes = static_cast<std::size_t>(a.memory_mib * (1 << 20));
    options.attend_tokens = a.attend_tokens;
    options.shards = std::min(2U, shape.kv_heads);
    options.io = a.io;
    options.path = a.kv_path;

    for (const auto& policy :
         policies) { // a bound too small for the last policy shall not come after an hour
        options.policy = policy;
        (void)engine::open_or_fall_back(options, program);
    }
    engine::forget_file();

    std::FILE* const out = a.json_file == "-" ? stderr : stdout;
    const double count = static_cast<double>(questions.size());
    const double entry_bytes = 2.0 * 2.0 * shape.layers * shape.kv_heads * shape.head_dim; // K and V, f16
    std::fprintf(
        out,
        "%zu questions, each about its own document of %.0f tokens (%zu fact%s in it), asked in %.0f "
        "tokens.\n"
        "A document's cache is %.2f MiB in f16; policies other than full may use %.2f MiB of memory\n"
        "and attend %zu entries per head and layer.\n\n",
        questions.size(), static_cast<double>(tokens) / count, a.document.facts,
        a.document.facts == 1 ? "" : "s", static_cast<double>(decoded) / count,
        mib(entry_bytes * static_cast<double>(tokens) / count), a.memory_mib, a.attend_tokens);
    std::fprintf(out, "%-24s %8s %10s %10s %12s %9s %9s\n", "policy", "accuracy", "KV memory", "KiB/token",
                 "reads/token", "hit rate", "tokens/s");
    std::fflush(out);

    // Threads inherit what is held back: only this one takes the ending signals, and so never while it opens
    // a file.
    engine::thread_pool pool = [&] {
        const engine::signal_hold hold;
        return engine::thread_pool(a.threads);
    }();
    std::vector<row> rows;
    for (const auto& policy : policies) {
        rows.push_back(run_policy(policy, options, model, words, pool, questions));
        print_row(out, rows.back());
    }
    std::fprintf(out, "\nKiB, reads, hit rate and tokens/s are those of decoding.");
    const auto on_file =
        std::find_if(rows.begin(), rows.end(), [](const row& r) { return r.stats.io != "memory"; });
    if (on_file != rows.end())
        std::fprintf(out, " The cache was a file: %s%s.", on_file->stats.io.c_str(),
                     on_file->stats.direct ? ", O_DIRECT" : "");
    std::fprintf(out, "\n");
    if (!a.json_file.empty()) engine::write_output(a.json_file, to_json(a, rows));
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app(
            "Asks questions about documents that are longer than the cache's memory, once per policy.",
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
