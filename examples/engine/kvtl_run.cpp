// kvtl-run: generates text with a GGUF model whose KV cache is kept by kvtl.
//
//   kvtl-run -m model.gguf -p "The kernel is started by" --policy dynakv --memory-mib 4 --json -
//
// Exit status: 0, 2 for what can never work (bad usage, unreadable file, impossible value), 1 for a run that
// fails midway. SPDX-License-Identifier: MIT
#include <kvtl/version.hpp>

#include "cleanup.hpp"
#include "error.hpp"
#include "generate.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "model.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "thread_pool.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <CLI/CLI.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

namespace {

using engine::bad_input;

struct arguments {
    std::string model;
    std::optional<std::string> prompt;
    std::string prompt_file;
    std::string json_file;
    std::string policy = "dynakv";
    std::string io = "uring";
    std::string kv_path = "./kvtl-" + std::to_string(::getpid()) + ".kv";
    std::size_t attend_tokens = 256;
    std::size_t keep_tokens = 0;
    std::size_t prefill_chunk = 512;
    double memory_mib = 64;
    unsigned threads = 2;
    unsigned shards = 0;
    bool list_policies = false;
    std::vector<std::string> settings;
    engine::generate_options generate;
};

std::string joined(const std::vector<std::string_view>& names) {
    std::string list;
    for (const auto name : names)
        list += (list.empty() ? "" : ", ") + std::string(name);
    return list;
}

/// CLI11 would take -1 for the largest unsigned number.
std::string whole_number(const std::string& text) {
    const bool good = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return good ? "" : "'" + text + "' is not a whole number";
}

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string("kvtl-run ") + KVTL_VERSION_STRING);
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
    app.add_option("--keep-tokens", a.keep_tokens, "entries per head that survive; 0: the policy's default");
    app.add_option("--memory-mib", a.memory_mib, "memory of the cache in MiB")->capture_default_str();
    app.add_option("--kv-path", a.kv_path, "file of the cache (default ./kvtl-PID.kv)");
    app.add_option("--io", a.io, "uring, posix or memory")->capture_default_str();
    app.add_option("--threads", a.threads, "threads of the engine")->capture_default_str();
    app.add_option("--shards", a.shards,
                   "parts of the cache that work concurrently (default: 2, at most KV heads)");
    app.add_option("--prefill-chunk", a.prefill_chunk, "tokens per pass of the prompt")
        ->capture_default_str();
    app.add_option("--json", a.json_file, "write the result as JSON; - for standard output");
    for (const char* name : {"--predict", "--seed", "--logits", "--attend-tokens", "--keep-tokens",
                             "--threads", "--shards", "--prefill-chunk"})
        app.get_option(name)->check(whole_number);
    for (auto* option : app.get_options()) // the last one counts, as shells' aliases expect
        if (option->get_name() != "--set")
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

engine::setting parse_setting(const std::string& text) {
    const auto equals = text.find('=');
    const auto first = text.find('.');
    const auto second = first == std::string::npos ? first : text.find('.', first + 1);
    engine::setting s;
    if (equals != std::string::npos && second < equals)
        s = {text.substr(0, first), text.substr(first + 1, second - first - 1),
             text.substr(second + 1, equals - second - 1), text.substr(equals + 1)};
    if (s.policy.empty() || s.slot.empty() || s.field.empty() || s.value.empty())
        throw bad_input("--set " + text + ": expected POLICY.SLOT.FIELD=VALUE");
    return s;
}

void require_policy(const std::string& name, const char* option) {
    const auto names = engine::policy_names();
    if (std::find(names.begin(), names.end(), name) == names.end())
        throw bad_input(std::string(option) + ": unknown policy '" + name + "'; valid: " + joined(names));
}

void check(const arguments& a) {
    const auto require = [](bool good, const std::string& message) {
        if (!good)
            throw bad_input(message);
    };
    require(!a.model.empty(), "no model: give one with -m FILE");
    require(a.prompt.has_value() || !a.prompt_file.empty(), "no prompt: give one with -p TEXT or -f FILE");
    require(a.generate.temperature >= 0 && a.generate.temperature <= 1000, "--temp: valid: 0 to 1000");
    require(a.memory_mib > 0 && a.memory_mib <= 1 << 24, "--memory-mib: valid: more than 0, up to 16777216");
    require(a.attend_tokens > 0, "--attend-tokens: valid: 1 or more");
    require(a.prefill_chunk > 0, "--prefill-chunk: valid: 1 or more");
    require(a.threads >= 1 && a.threads <= 256, "--threads: valid: 1 to 256");
    require(a.shards <= 256, "--shards: valid: 1 to 256");
    require(a.io == "uring" || a.io == "posix" || a.io == "memory",
            "--io: unknown device '" + a.io + "'; valid: uring, posix, memory");
    require(!a.kv_path.empty() || a.io == "memory", "--kv-path: the path is empty");
    require_policy(a.policy, "--policy");
    if (!a.json_file.empty() &&
        a.json_file != "-") { // the run may take long: find out now that it cannot be written
        namespace fs = std::filesystem;
        const fs::path file(a.json_file);
        std::error_code ignored;
        const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
        const bool exists = fs::exists(file, ignored);
        const bool writable = ::access((exists ? file : folder).c_str(), W_OK) == 0;
        require(writable && !fs::is_directory(file, ignored), "--json: cannot write " + a.json_file);
    }
}

std::string read_prompt(const arguments& a) {
    if (a.prompt)
        return *a.prompt;
    struct stat info = {};
    std::ifstream in(a.prompt_file, std::ios::binary);
    if (!in || ::stat(a.prompt_file.c_str(), &info) != 0 || S_ISDIR(info.st_mode))
        throw bad_input("cannot read prompt file " + a.prompt_file + ": " +
                        std::strerror(in ? EISDIR : errno));
    return {std::istreambuf_iterator<char>(in), {}};
}

/// Opens the cache, on posix when the kernel refuses io_uring, and sees to it that its file never stays
/// behind.
std::unique_ptr<engine::kv_cache> open(engine::cache_options options) {
    const engine::signal_hold hold;
    auto opened = engine::open_cache(options);
    if (!opened && opened.error().code == kvtl::errc::unsupported && options.io == "uring") {
        const std::string reason = opened.error().message;
        options.io = "posix";
        opened = engine::open_cache(options);
        if (opened)
            std::fprintf(stderr, "kvtl-run: warning: io_uring cannot be used (%s); using posix\n",
                         reason.c_str());
    }
    if (!opened)
        throw bad_input(opened.error().message);
    if (options.io != "memory")
        engine::remove_on_signal(options.path);
    return std::move(*opened);
}

void write_json(const std::string& file, const std::string& text) {
    if (file == "-") {
        std::printf("%s\n", text.c_str());
        return;
    }
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << text << '\n';
    out.close();
    if (!out)
        throw engine::run_failure("cannot write " + file);
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
    for (const auto& text : a.settings) {
        options.settings.push_back(parse_setting(text));
        require_policy(options.settings.back().policy, "--set");
    }
    const std::string prompt = read_prompt(a);
    if (prompt.empty())
        throw bad_input("the prompt is empty");

    const engine::gguf_file file(a.model);
    const engine::model model(file);
    const engine::tokenizer words(file);
    const auto tokens = words.encode(prompt, true);
    const std::size_t context = model.hyper().context;
    if (tokens.empty())
        throw bad_input("the prompt is empty");
    if (tokens.size() > context || a.generate.predict > context - tokens.size())
        throw bad_input("prompt of " + std::to_string(tokens.size()) + " tokens + --predict " +
                        std::to_string(a.generate.predict) + " is longer than the model's context of " +
                        std::to_string(context));

    options.policy = a.policy;
    options.shape = model.hyper().shape;
    options.max_tokens = tokens.size() + a.generate.predict;
    options.memory_bytes = static_cast<std::size_t>(a.memory_mib * (1 << 20));
    options.attend_tokens = a.attend_tokens;
    options.keep_tokens = a.keep_tokens;
    options.shards = a.shards != 0 ? a.shards : std::min(2U, options.shape.kv_heads);
    if (options.shards > options.shape.kv_heads)
        throw bad_input("--shards: the model has " + std::to_string(options.shape.kv_heads) +
                        " KV heads, which is the most");
    options.io = a.io;
    options.path = a.kv_path;

    engine::thread_pool pool(a.threads);
    engine::run_report report;
    {
        const auto cache = open(options);
        engine::transformer transformer(model, *cache, pool, a.prefill_chunk);
        const bool stream = a.json_file != "-";
        engine::progress_bar reading("prompt", tokens.size());
        engine::progress_bar writing("tokens", a.generate.predict, !stream || ::isatty(STDOUT_FILENO) == 0);
        engine::generate_events events;
        events.prefilled = [&](std::size_t done) {
            reading.update(done);
            if (done == tokens.size())
                reading.clear();
        };
        events.generated = [&, count = std::size_t{0}](engine::token_id id) mutable {
            writing.update(++count);
            if (!stream)
                return;
            const auto piece = words.piece(id);
            std::fwrite(piece.data(), 1, piece.size(), stdout);
            std::fflush(stdout);
        };
        report.run = generate(transformer, words, tokens, a.generate, events);
        if (stream)
            std::printf("\n");
        report.stats = cache->stats();
    }
    engine::forget_file();
    report.policy = a.policy;
    report.prompt_tokens = tokens.size();
    report.text = words.decode(report.run.tokens);
    if (!a.json_file.empty())
        write_json(a.json_file, to_json(report));
    print_summary(report);
}

int fail(int exit_status, const char* message) {
    std::fprintf(stderr, "kvtl-run: %s\n", message);
    return exit_status;
}

} // namespace

int main(int argc, char** argv) {
    std::signal(SIGXFSZ,
                SIG_IGN); // a file-size limit shall come back as an error of the write, not end the program
    try {
        arguments a;
        CLI::App app("Generates text with a GGUF model; the KV cache lives on flash and is kept by kvtl.",
                     "kvtl-run");
        define_options(app, a);
        try {
            app.parse(argc, argv);
        } catch (const CLI::Success& e) { // --help, --version
            return app.exit(e);
        } catch (const CLI::ParseError& e) {
            return fail(2, e.what());
        }
        if (a.list_policies) {
            for (const auto name : engine::policy_names())
                std::printf("%.*s\n", static_cast<int>(name.size()), name.data());
            return 0;
        }
        run(a);
        return 0;
    } catch (const bad_input& e) {
        return fail(2, e.what());
    } catch (const std::exception& e) {
        return fail(1, e.what());
    }
}
