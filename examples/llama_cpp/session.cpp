// SPDX-License-Identifier: MIT
#include "session.hpp"

#include "backends.hpp"
#include "cleanup.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "program.hpp"
#include "tuned_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

namespace llama_run {

namespace {

/// llama.cpp says why in its log alone. The last error is kept for the message that the program ends with.
std::string last_error;

void remember(ggml_log_level level, const char* text, void*) {
    if (level != GGML_LOG_LEVEL_ERROR) return;
    std::string line(text);
    while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
    // The first of several is the cause, what follows says who gave up.
    if (!line.empty() && last_error.empty()) last_error = line;
}

std::string because() {
    return last_error.empty() ? std::string() : ": " + last_error;
}

void set_up_once() {
    static const bool done = [] {
        const engine::signal_hold hold; // threads of libraries do not take the signals that end the program
        kvtl_llama::load_backends();
        llama_log_set(remember, nullptr);
        return true;
    }();
    static_cast<void>(done);
}

} // namespace

loaded_model::loaded_model(const std::string& file) {
    struct stat info = {};
    if (::stat(file.c_str(), &info) != 0)
        throw engine::bad_input("cannot read model " + file + ": " + std::generic_category().message(errno));
    if (S_ISDIR(info.st_mode)) throw engine::bad_input("cannot read model " + file + ": it is a directory");
    set_up_once();
    last_error.clear();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    model_.reset(llama_model_load_from_file(file.c_str(), params));
    if (!model_) throw engine::bad_input("llama.cpp cannot load " + file + because());
    words_ = llama_model_get_vocab(model_.get());
    if (llama_vocab_type(words_) == LLAMA_VOCAB_TYPE_NONE)
        throw engine::bad_input(file + " has no vocabulary, so no text can be read with it");
    if (const char* found = llama_model_chat_template(model_.get(), nullptr)) template_ = found;
}

std::size_t loaded_model::trained_context() const noexcept {
    return static_cast<std::size_t>(std::max(0, llama_model_n_ctx_train(model_.get())));
}

unsigned loaded_model::kv_heads() const noexcept {
    return static_cast<unsigned>(std::max(1, llama_model_n_head_kv(model_.get())));
}

std::size_t loaded_model::vocabulary() const noexcept {
    return static_cast<std::size_t>(llama_vocab_n_tokens(words_));
}

bool loaded_model::is_end(token_id id) const noexcept {
    return llama_vocab_is_eog(words_, static_cast<llama_token>(id));
}

std::vector<token_id> loaded_model::encode(std::string_view text, bool begin, bool control) const {
    if (text.size() > 1U << 30) throw engine::bad_input("the text is longer than 1 GiB");
    std::vector<llama_token> ids(text.size() + 8);
    const auto read = [&] {
        return llama_tokenize(words_, text.data(), static_cast<std::int32_t>(text.size()), ids.data(),
                              static_cast<std::int32_t>(ids.size()), begin, control);
    };
    std::int32_t n = read();
    if (n < 0) {
        ids.resize(static_cast<std::size_t>(-n));
        n = read();
    }
    return {ids.begin(), ids.begin() + std::max(0, n)};
}

std::string loaded_model::piece(token_id id, bool control) const {
    std::string text(64, '\0');
    const auto write = [&] {
        return llama_token_to_piece(words_, static_cast<llama_token>(id), text.data(),
                                    static_cast<std::int32_t>(text.size()), 0, control);
    };
    std::int32_t n = write();
    if (n < 0) {
        text.resize(static_cast<std::size_t>(-n));
        n = write();
    }
    text.resize(static_cast<std::size_t>(std::max(0, n)));
    return text;
}

std::optional<std::string> loaded_model::render(std::span<const engine::message> messages,
                                                bool for_answer) const {
    if (template_.empty()) return std::nullopt;
    std::vector<llama_chat_message> chat;
    std::size_t length = 256;
    for (const engine::message& m : messages) {
        chat.push_back({m.role.c_str(), m.text.c_str()});
        length += 2 * m.text.size() + 64;
    }
    std::string out;
    for (int attempt = 0; attempt < 2; ++attempt) {
        out.assign(length, '\0');
        const std::int32_t n =
            llama_chat_apply_template(template_.c_str(), chat.data(), chat.size(), for_answer, out.data(),
                                      static_cast<std::int32_t>(out.size()));
        if (n < 0) return std::nullopt;
        if (static_cast<std::size_t>(n) <= length) {
            out.resize(static_cast<std::size_t>(n));
            return out;
        }
        length = static_cast<std::size_t>(n);
    }
    return std::nullopt;
}

token_batch::token_batch(std::size_t most)
    : most_(most), batch_(llama_batch_init(static_cast<std::int32_t>(most), 0, 1)) {}

void token_batch::add(token_id id, std::size_t position, unsigned sequence, bool logits) noexcept {
    const std::size_t i = size();
    batch_.token[i] = static_cast<llama_token>(id);
    batch_.pos[i] = static_cast<llama_pos>(position);
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = static_cast<llama_seq_id>(sequence);
    batch_.logits[i] = logits ? 1 : 0;
    ++batch_.n_tokens;
}

session::session(const loaded_model& model, const session_options& o, const char* program)
    : model_(model), max_tokens_(o.max_tokens) {
    last_error.clear();
    if (o.plain)
        begin_plain(o);
    else
        begin_kvtl(o, program);
}

void session::begin_plain(const session_options& o) {
    llama_context_params params = llama_context_default_params();
    const std::size_t cells = o.cells != 0 ? o.cells : o.max_tokens * o.sequences;
    params.n_ctx = static_cast<std::uint32_t>((cells + 255) / 256 * 256);
    params.n_batch = params.n_ubatch = o.batch;
    params.n_seq_max = o.sequences;
    params.kv_unified = true;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
    params.type_k = params.type_v = o.cell_type;
    params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(o.threads);
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw engine::bad_input("llama.cpp cannot begin with this model" + because());
    const engine::signal_hold hold;
    if (auto s = workers_.attach(context_.get(), o.threads, 50); !s) throw engine::bad_input(s.what());
    plain_held_.assign(o.sequences, 0);
}

kvtl::status session::try_kvtl(const session_options& o, const engine::cache_options& cache) {
    context_.reset();
    llama_context_params params = llama_context_default_params();
    params.n_batch = params.n_ubatch = o.batch;
    const kvtl_llama::settings with{.max_tokens = o.max_tokens,
                                    .max_sequences = o.sequences,
                                    .cells = o.cells != 0 ? o.cells : o.batch,
                                    .threads = o.threads};
    auto attached = kvtl_llama::attachment::attach(
        params, model_.get(), with,
        [this, base = cache, with, trace = o.trace_file, tuned = o.tuned_file, least = o.least_memory](
            const kvtl_llama::model_facts& f) -> kvtl::result<std::unique_ptr<engine::kv_cache>> {
            engine::cache_options options = base;
            try {
                const auto chosen = engine::tuned_settings(tuned, std::span(&options.policy, 1), f.shape,
                                                           with.max_sequences, with.max_tokens);
                options.settings.insert(options.settings.begin(), chosen.begin(), chosen.end());
            } catch (const engine::bad_input& why) { // llama.cpp lies between here and who would catch it
                return kvtl::error(kvtl::errc::invalid_argument, why.what());
            }
            if (least) {
                least_ = kvtl_llama::least_by_name(options, f, with);
                return kvtl::error(kvtl::errc::unsupported, "only the least memory is wanted");
            }
            auto opened = kvtl_llama::open_by_name(options, f, with);
            if (!opened || trace.empty()) return opened;
            recorded_ = *std::move(opened);
            auto recording = std::make_unique<engine::recording_cache>(
                *recorded_, trace,
                kvtl::trace_header{
                    .shape = f.shape,
                    .pair_distance =
                        f.rope_neighbours ? 1 : static_cast<std::uint32_t>(f.rope_frequencies.size()),
                    .fingerprint = options.fingerprint});
            recording_ = recording.get();
            return std::unique_ptr<engine::kv_cache>(std::move(recording));
        });
    if (!attached) {
        why_not_ = attached.error().message;
        return kvtl::status::failure(attached.error().code, "%s", why_not_.c_str());
    }
    attachment_.emplace(std::move(*attached));
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw engine::bad_input("llama.cpp cannot begin with this model" + because());
    auto started = attachment_->start(context_.get());
    why_not_ = attachment_->why_not();
    return started;
}

void session::begin_kvtl(const session_options& o, const char* program) {
    const engine::signal_hold hold; // none falls between the making of the file and its unlinking
    engine::cache_options cache = o.cache;
    if (o.least_memory) {
        static_cast<void>(try_kvtl(o, cache));
        if (least_.ok() && least_->parts.empty()) throw engine::bad_input(why_not_); // it did not come so far
        return;
    }
    const auto started = engine::or_posix(cache.io, program, [&]() -> kvtl::result<bool> {
        if (const kvtl::status s = try_kvtl(o, cache); !s) return kvtl::error(s.code(), why_not_);
        return true;
    });
    if (!started) {
        // The library knows fields, not options.
        const bool memory = started.error().code == kvtl::errc::bound_too_small;
        throw engine::bad_input(why_not_ +
                                (memory ? "\n  more memory: --memory-mib; fewer tokens to hold: -c" : "") +
                                (memory && o.sequences > 1 ? "; fewer sequences: --parallel" : ""));
    }
    // The file stays open and locked; whatever ends the program now, nothing is left behind.
    if (cache.io != "memory" && !o.keep_file && stats().io != "memory") ::unlink(cache.path.c_str());
}

void session::decode(const token_batch& batch) {
    if (attachment_) {
        if (auto s = attachment_->decode(batch.get()); !s) throw engine::run_failure(s.what());
        return;
    }
    last_error.clear();
    if (const int code = llama_decode(context_.get(), batch.get()); code != 0)
        throw engine::run_failure((code == 1 ? std::string("llama.cpp's cells are full")
                                             : "llama_decode returned " + std::to_string(code)) +
                                  because());
    const llama_batch& b = batch.get();
    for (std::size_t i = 0; i < batch.size(); ++i)
        plain_held_[static_cast<std::size_t>(b.seq_id[i][0])] = static_cast<std::size_t>(b.pos[i]) + 1;
}

std::span<const float> session::logits(std::size_t token) const {
    const float* first = llama_get_logits_ith(context_.get(), static_cast<std::int32_t>(token));
    if (first == nullptr)
        throw engine::run_failure("llama.cpp has no logits of token " + std::to_string(token));
    return {first, model_.vocabulary()};
}

bool session::rewind(unsigned sequence, std::size_t position) {
    const auto seq = static_cast<llama_seq_id>(sequence);
    const auto to = static_cast<llama_pos>(position);
    if (attachment_) return attachment_->rewind(seq, to).ok();
    if (!llama_memory_seq_rm(llama_get_memory(context_.get()), seq, to, -1)) return false;
    plain_held_[sequence] = position;
    return true;
}

void session::end(unsigned sequence) {
    const auto seq = static_cast<llama_seq_id>(sequence);
    if (attachment_) {
        if (auto s = attachment_->end(seq); !s) throw engine::run_failure(s.what());
        return;
    }
    llama_memory_seq_rm(llama_get_memory(context_.get()), seq, -1, -1);
    plain_held_[sequence] = 0;
}

kvtl::save_facts session::save(unsigned sequence, const std::string& path, const kvtl::save_options& o) {
    auto saved = attachment_->save(static_cast<llama_seq_id>(sequence), path, o);
    if (!saved) throw engine::run_failure("--save-state: " + saved.error().message);
    return *saved;
}

kvtl::loaded_sequence session::load(unsigned sequence, const std::string& path, const kvtl::load_options& o) {
    auto loaded = attachment_->load(static_cast<llama_seq_id>(sequence), path, o);
    if (!loaded) throw engine::bad_input("--load-state: " + loaded.error().message);
    return *loaded;
}

kvtl::sequence_id session::name_of(unsigned sequence) const {
    const auto id = attachment_->name_of(static_cast<llama_seq_id>(sequence));
    if (!id) throw engine::run_failure("sequence " + std::to_string(sequence) + " has not begun");
    return *id;
}

void session::adopt(unsigned sequence, kvtl::sequence_id id, std::size_t tokens) {
    if (auto s = attachment_->adopt(static_cast<llama_seq_id>(sequence), id, tokens); !s)
        throw engine::run_failure(s.what());
}

void session::finish_trace() {
    if (recording_ != nullptr) recording_->finish();
}

std::size_t session::held(unsigned sequence) const noexcept {
    if (!attachment_) return plain_held_[sequence];
    return static_cast<std::size_t>(attachment_->held(static_cast<llama_seq_id>(sequence)));
}

engine::cache_stats session::stats() const {
    return attachment_ ? attachment_->stats() : engine::cache_stats{};
}

bool session::one_sequence_per_batch() const noexcept {
    return attachment_ && attachment_->facts().hybrid;
}

std::uint64_t shipped_fingerprint(const std::string& file) {
    try {
        return engine::fingerprint_of(engine::model(engine::gguf_file(file)));
    } catch (const engine::bad_input&) {
        return 0;
    }
}

std::uint64_t process_resident_bytes_peak() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    return 0;
}

} // namespace llama_run
