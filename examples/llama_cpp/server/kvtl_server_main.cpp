// kvtl-server: an OpenAI-compatible server on llama.cpp, the KV caches of all conversations kept by kvtl in one amount of
// memory.
//
//   kvtl-server -m model.gguf --parallel 4 --memory-mib 256
//   curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json'
//        -d '{"messages":[{"role":"user","content":"Hello"}]}'
//
// Exit status: 0 after SIGTERM or SIGINT, 2 for what can never work (bad usage, unreadable file, a model that has to be
// refused), 1 for what fails later.
// SPDX-License-Identifier: MIT
#include <kvtl/core/save/identity.hpp>
#include <kvtl/save/fingerprint.hpp>
#include <kvtl/save/saved_file.hpp>
#include <kvtl/version.hpp>

#include "command_line.hpp"
#include "conversations.hpp"
#include "error.hpp"
#include "http_api.hpp"
#include "model_choice.hpp"
#include "model_digest.hpp"
#include "program.hpp"
#include "remote.hpp"
#include "run_header.hpp"
#include "run_options.hpp"
#include "scheduler.hpp"
#include "served_model.hpp"
#include "session.hpp"

#include <CLI/CLI.hpp>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace {

using engine::bad_input;
using engine::require;

constexpr const char* program = "kvtl-server";

struct arguments : engine::run_options {
    std::string host = "127.0.0.1";
    std::string key_file;
    std::size_t port = 8080;
    std::size_t parallel = 4;
    std::size_t context = 0;
    std::size_t queue = 64;
    std::size_t body_mib = 8;
    std::string store;
    std::size_t store_mib = 4096;
    std::size_t write_mib = 0;
    std::string remote, remote_ca, remote_cert, remote_key, remote_password;
    std::size_t remote_timeout = 2000;
    std::size_t remote_ttl = 86400;

    arguments() { policy = "dynakv_estimate"; }
};

void define_options(CLI::App& app, arguments& a) {
    app.set_version_flag("--version", std::string(program) + " " + KVTL_VERSION_STRING);
    engine::define_model(app, a.model, "GGUF file that llama.cpp runs");
    app.add_option("--host", a.host,
                   "address to listen on; others than 127.0.0.1 can be reached from outside")
        ->capture_default_str();
    app.add_option("--port", a.port, "port to listen on; 0: one that is free, which is printed")
        ->capture_default_str();
    app.add_option("--api-key-file", a.key_file,
                   "file of the keys that may ask, one per line (default: anybody)");
    app.add_option("--parallel", a.parallel, "conversations that are answered at once, and share the memory")
        ->capture_default_str();
    app.add_option("-c,--context", a.context,
                   "longest conversation in tokens (default: what the model allows)");
    app.add_option("--queue", a.queue, "requests that may wait while all are busy")->capture_default_str();
    app.add_option("--max-body-mib", a.body_mib, "largest body of a request")->capture_default_str();
    app.add_option("--store", a.store,
                   "folder of conversations, which go on from there (default: ~/.cache/kvtl)");
    app.add_option("--store-mib", a.store_mib,
                   "most that they may take on the disk; 0: they end with the server")
        ->capture_default_str();
    app.add_option("--store-write-mib-per-day", a.write_mib,
                   "most that is written to them in a day (UTC); 0: as much as there is")
        ->capture_default_str();
    app.add_option("--remote", a.remote,
                   "where conversations are stored for other servers, too: folder:PATH, "
                   "redis://HOST:PORT[,HOST:PORT...] or "
                   "rediss://.. (default: nowhere)");
    app.add_option("--remote-ca", a.remote_ca,
                   "PEM file of the certificates to trust with rediss:// (default: those of the system)");
    app.add_option("--remote-cert", a.remote_cert,
                   "PEM file of the certificate that is shown to servers of rediss:// which ask for one");
    app.add_option("--remote-key", a.remote_key,
                   "PEM file of its key, without a passphrase (default: in the file of --remote-cert)");
    app.add_option(
        "--remote-password-file", a.remote_password,
        "file whose first line is the password of --remote, which other users can read on a command line");
    app.add_option("--remote-timeout-ms", a.remote_timeout, "longest that a request waits for it")
        ->capture_default_str();
    app.add_option("--remote-ttl-s", a.remote_ttl,
                   "seconds that a conversation is there after it was used last")
        ->capture_default_str();
    engine::define_cache_options(app, a);
    engine::finish_options(app,
                           {"--port", "--parallel", "--context", "--queue", "--max-body-mib", "--store-mib",
                            "--store-write-mib-per-day", "--remote-timeout-ms", "--remote-ttl-s"});
}

void check(const CLI::App& app, const arguments& a) {
    require(!a.model.empty(), engine::no_model_message());
    require(a.port <= 65535, "--port: valid: 0 to 65535");
    const std::size_t most = std::min<std::size_t>(llama_max_parallel_sequences(), 256);
    require(a.parallel >= 1 && a.parallel <= most, "--parallel: valid: 1 to " + std::to_string(most));
    require(app.count("--context") == 0 || a.context > 1, "--context: valid: 2 or more");
    require(a.queue >= 1 && a.queue <= 1024, "--queue: valid: 1 to 1024");
    require(a.body_mib >= 1 && a.body_mib <= 1024, "--max-body-mib: valid: 1 to 1024");
    require(a.store_mib <= std::size_t{1} << 30, "--store-mib: valid: 0 to 1073741824");
    require(a.write_mib <= std::size_t{1} << 30, "--store-write-mib-per-day: valid: 0 to 1073741824");
    require(a.remote.empty() || a.store_mib != 0, "--remote: valid: with a store (--store-mib 1 or more)");
    require(a.remote_ca.empty() || a.remote.starts_with("rediss://"),
            "--remote-ca: valid: with --remote rediss://..");
    require(a.remote_cert.empty() || a.remote.starts_with("rediss://"),
            "--remote-cert: valid: with --remote rediss://..");
    require(a.remote_key.empty() || !a.remote_cert.empty(), "--remote-key: valid: with --remote-cert");
    require(a.remote_password.empty() || a.remote.starts_with("redis"),
            "--remote-password-file: valid: with --remote redis://.. or rediss://..");
    require(a.remote_timeout >= 1 && a.remote_timeout <= 60000, "--remote-timeout-ms: valid: 1 to 60000");
    require(a.remote_ttl >= 1 && a.remote_ttl <= 31536000, "--remote-ttl-s: valid: 1 to 31536000");
    engine::check_run_options(a);
}

/// The folder of conversations, which is made where it is missing.
std::string store_folder(const arguments& a) {
    std::filesystem::path folder = a.store;
    if (folder.empty()) {
        const char* home = std::getenv("HOME"); // NOLINT(concurrency-mt-unsafe): nothing sets it
        require(home != nullptr && *home != '\0', "there is no HOME for its default; name a folder");
        folder = std::filesystem::path(home) / ".cache" / "kvtl";
    }
    std::error_code why;
    if (std::filesystem::create_directories(folder, why))
        std::filesystem::permissions(folder, std::filesystem::perms::owner_all, why); // others' questions
    require(!why, "cannot make " + folder.string() + ": " + why.message());
    return folder.string();
}

/// What all names in the remote begin with: servers find only what they can load. A number for the format of saved files and for
/// what load() compares of a cache, which is read from a file without tokens in `folder`.
std::string remote_names(engine::kv_cache& cache, const std::string& folder) {
    const std::string path = folder + "/" + std::string(32, '0') + ".kvs.part"; // stores remove such a name
    const kvtl::sequence_id seq = engine::insist(cache.begin());
    auto saved = cache.save(seq, path);
    engine::insist(cache.end(seq));
    static_cast<void>(engine::insist(std::move(saved)));
    auto opened = kvtl::saved_file::open(path);
    static_cast<void>(kvtl::posix_file_ops::remove(path));
    auto file = engine::insist(std::move(opened));
    kvtl::fingerprint_hash hash;
    hash.add_number(kvtl::saved_format_version);
    for (const kvtl::identity_field& f : engine::insist(file.identity()))
        if (kvtl::must_agree(f.name)) hash.add(f.name), hash.add(f.value);
    char text[32];
    std::snprintf(text, sizeof text, "kvtl:1:%016" PRIx64, hash.value());
    return text;
}

void keep_conversations(const arguments& a, llama_run::session& session, kvtl_server::conversations& held,
                        std::optional<kvtl_server::remote_store>& remote) {
    if (a.store_mib == 0) return;
    if (session.one_sequence_per_batch()) {
        std::fprintf(stderr,
                     "%s: note: conversations end with the server, as the model has layers with a recurrent "
                     "state, which is not saved\n",
                     program);
        return;
    }
    const auto as_store = [](const auto& call) {
        try {
            return call();
        } catch (const bad_input& e) {
            throw bad_input(std::string("--store: ") + e.what() + " (--store-mib 0: without a store)");
        }
    };
    kvtl::prefix_store_config config{.folder = as_store([&] { return store_folder(a); }),
                                     .model = kvtl_server::model_digest(a.model),
                                     .file_bytes = std::uint64_t{a.store_mib} << 20,
                                     .rewind_tokens =
                                         32}; // a client that left has seen a little less than was generated
    if (a.write_mib != 0) config.write_bytes_per_day = std::uint64_t{a.write_mib} << 20;
    if (!a.remote.empty())
        remote.emplace(kvtl_server::remote_options{.place = a.remote,
                                                   .ca_file = a.remote_ca,
                                                   .cert_file = a.remote_cert,
                                                   .key_file = a.remote_key,
                                                   .password_file = a.remote_password,
                                                   .timeout = std::chrono::milliseconds(a.remote_timeout),
                                                   .ttl = std::chrono::seconds(a.remote_ttl)},
                       as_store([&] { return remote_names(session.cache(), config.folder); }),
                       kvtl_server::remote_bounds{.folder = config.folder,
                                                  .file_bytes = config.file_bytes,
                                                  .free_bytes = config.free_bytes},
                       config.model);
    const bool beginnings =
        !engine::policy_wants(a.policy).evicts; // a beginning without its question is thinned out otherwise
    as_store([&] { held.keep_in(std::move(config), beginnings, remote ? &*remote : nullptr); });
}

/// Tokens of a conversation.
std::size_t context_of(const arguments& a, const llama_run::loaded_model& model) {
    const std::size_t allowed = model.trained_context();
    require(a.context <= allowed,
            "--context: valid: 2 to " + std::to_string(allowed) + ", which the model was trained for");
    return a.context != 0 ? a.context : allowed;
}

/// A policy that evicts at the end of a prompt sees all of it, up to so many tokens.
constexpr std::size_t most_at_once = 4096;

llama_run::session_options sizes_of(const arguments& a, const llama_run::loaded_model& model) {
    llama_run::session_options o;
    o.threads = a.threads;
    o.sequences = static_cast<std::uint32_t>(a.parallel);
    o.max_tokens = context_of(a, model);
    const bool evicts = engine::policy_wants(a.policy).evicts;
    const std::size_t chunk = a.prefill_chunk.value_or(evicts ? most_at_once : std::size_t{512});
    // Beside a prompt there is room for a token of every answer.
    o.batch = static_cast<std::uint32_t>(std::min(chunk, o.max_tokens) + a.parallel);
    o.cache = engine::cache_options_of(a);
    require(a.shards <= model.kv_heads(),
            "--shards: the model has " + std::to_string(model.kv_heads()) + " KV heads, which is the most");
    o.cache.shards = a.shards; // 0: by the threads
    o.cache.fingerprint = llama_run::shipped_fingerprint(a.model);
    return o;
}

/// SIGTERM, SIGINT and SIGHUP, taken by a thread that may lock. The first one stops the scheduler, if it runs; others end the
/// program at once.
class ending_signals {
  public:
    ending_signals() {
        ::sigemptyset(&set_);
        for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set_, number);
        ::pthread_sigmask(SIG_BLOCK, &set_, nullptr); // of every thread that begins later, too
        std::signal(SIGPIPE, SIG_IGN);
        thread_ = std::thread([this] { take_all(); });
    }
    ending_signals(const ending_signals&) = delete;
    ending_signals& operator=(const ending_signals&) = delete;
    ~ending_signals() {
        {
            const std::lock_guard lock(mutex_);
            over_ = true;
        }
        ::pthread_kill(thread_.native_handle(), SIGTERM);
        thread_.join();
    }

    /// Null: nothing runs.
    void first_one_stops(kvtl_server::scheduler* work) {
        const std::lock_guard lock(mutex_);
        work_ = work;
    }

  private:
    void take_all() {
        for (;;) {
            int number = 0;
            ::sigwait(&set_, &number);
            const std::lock_guard lock(mutex_);
            if (over_) return;
            if (work_ != nullptr) {
                std::exchange(work_, nullptr)->stop();
                continue;
            }
            ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
            ::raise(number); // what it does by itself: SIGHUP may be ignored
            ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
        }
    }

    sigset_t set_{};
    std::mutex mutex_; ///< of both below
    kvtl_server::scheduler* work_ = nullptr;
    bool over_ = false;
    std::thread thread_;
};

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
    if (!kvtl_server::is_loopback(a.host) && a.key_file.empty())
        std::fprintf(stderr,
                     "%s: warning: whoever reaches %s may ask; --api-key-file FILE names those who may\n",
                     program, a.host.c_str());
}

void run(const arguments& a) {
    ending_signals signals; // before any thread that would take them
    const kvtl_server::api_keys keys =
        a.key_file.empty() ? kvtl_server::api_keys() : kvtl_server::api_keys(a.key_file);
    kvtl_server::http_api http({.host = a.host,
                                .port = static_cast<int>(a.port),
                                .max_body = a.body_mib << 20,
                                .threads = a.parallel + a.queue + 8});
    const llama_run::loaded_model model(a.model);
    llama_run::session session(model, sizes_of(a, model), program);
    print_header(a, session);

    kvtl_server::metrics counts;
    std::optional<kvtl_server::remote_store> remote;
    kvtl_server::conversations held(session, static_cast<unsigned>(a.parallel));
    keep_conversations(a, session, held, remote);
    if (remote) counts.watch([&remote] { return remote->statistics(); });
    const bool evicts = engine::policy_wants(a.policy).evicts;
    kvtl_server::scheduler work(session, held, counts,
                                {.queue = a.queue, .whole_prompts = evicts && !a.prefill_chunk});
    const kvtl_server::served_model served(model, std::filesystem::path(a.model).stem().string(),
                                           session.max_tokens());
    const kvtl_server::served all{.keys = keys, .model = served, .work = work, .counts = counts};

    std::thread listening([&] { http.serve(all); });
    signals.first_one_stops(&work);
    std::exception_ptr failure;
    try {
        std::printf("listening on %s\n", http.address().c_str());
        std::fflush(stdout);
        work.run();
    } catch (...) {
        failure = std::current_exception();
    }
    signals.first_one_stops(nullptr);
    http.stop();
    listening.join();
    if (remote) remote->finish(std::chrono::seconds(10));
    if (failure) std::rethrow_exception(failure);
}

} // namespace

int main(int argc, char** argv) {
    return engine::run_program(program, [&] {
        arguments a;
        CLI::App app(
            "Serves a GGUF model to OpenAI's clients with llama.cpp; the KV caches of all conversations "
            "live on flash and are kept by kvtl.",
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
