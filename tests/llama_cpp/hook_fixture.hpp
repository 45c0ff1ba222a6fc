// llama.cpp as it is beside llama.cpp on kvtl, fed the same tokens.
//
// Each sequence has a context of its own in plain llama.cpp, with room for everything; on the other side all share one
// attachment of 256 cells. The plain side's greedy tokens are the text, so that one difference does not become many.
// SPDX-License-Identifier: MIT
#pragma once

#include "backends.hpp"
#include "kvtl_llama.hpp"

#include <doctest/doctest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hook {

struct freed {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};
using model_ptr = std::unique_ptr<llama_model, freed>;
using context_ptr = std::unique_ptr<llama_context, freed>;
using tokens = std::vector<llama_token>;

inline model_ptr load(const std::string& path) {
    static const bool once = [] {
        kvtl_llama::load_backends();
        llama_log_set(
            [](ggml_log_level level, const char* text, void*) {
                if (level >= GGML_LOG_LEVEL_ERROR && std::getenv("KVTL_LLAMA_LOG") != nullptr)
                    std::fputs(text, stderr);
            },
            nullptr);
        return true;
    }();
    (void)once;
    auto params = llama_model_default_params();
    params.n_gpu_layers = 0;
    model_ptr model(llama_model_load_from_file(path.c_str(), params));
    REQUIRE(model);
    return model;
}

inline llama_model* embedded() {
    static const model_ptr model = load(KVTL_SOURCE_DIR "/examples/data/tiny-2k.gguf");
    return model.get();
}

/// The first n tokens of the essays from a character on.
inline tokens prose(llama_model* model, std::size_t n, std::size_t from = 0) {
    std::ifstream file(KVTL_SOURCE_DIR "/examples/data/prose.txt");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    text = text.substr(from, 8 * n);
    tokens ids(text.size() + 8);
    const auto* vocabulary = llama_model_get_vocab(model);
    const int count = llama_tokenize(vocabulary, text.data(), static_cast<int>(text.size()), ids.data(),
                                     static_cast<int>(ids.size()), true, false);
    REQUIRE(count >= static_cast<int>(n));
    ids.resize(n);
    return ids;
}

inline constexpr std::uint32_t cells = 256;
inline constexpr std::size_t max_tokens = 2048;

inline kvtl_llama::settings settings_for(std::uint32_t sequences = 1, unsigned threads = 1) {
    return {.max_tokens = max_tokens, .max_sequences = sequences, .cells = cells, .threads = threads};
}

/// A preset that attends everything, in memory.
inline engine::cache_options everything(const std::string& policy) {
    engine::cache_options o;
    o.policy = policy;
    o.memory_bytes = std::size_t{256} << 20;
    o.attend_tokens = max_tokens;
    o.io = "memory";
    return o;
}

/// Whose logits are wanted.
enum class wish { none, last, all };
struct piece {
    llama_seq_id seq = 0;
    tokens ids{};
    wish wants = wish::last;
};

class side_by_side {
  public:
    using maker = std::function<kvtl::result<kvtl_llama::attachment>(llama_context_params&, llama_model*,
                                                                     const kvtl_llama::settings&)>;

    side_by_side(llama_model* model, const kvtl_llama::settings& s, const maker& make)
        : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))),
          batch_(llama_batch_init(cells + 1, 0, 1)) { // one too many can be tried
        auto params = llama_context_default_params();
        auto made = make(params, model, s);
        if (!made) FAIL(made.error().message);
        attached = std::make_unique<kvtl_llama::attachment>(*std::move(made));
        context.reset(llama_init_from_model(model, params));
        REQUIRE(context);
        const auto started = attached->start(context.get());
        if (!started) FAIL(attached->why_not());
        for (std::uint32_t i = 0; i < s.max_sequences; ++i) plain.push_back(reference(model, true));
        texts.resize(s.max_sequences);
    }
    side_by_side(const side_by_side&) = delete;
    side_by_side& operator=(const side_by_side&) = delete;
    ~side_by_side() { llama_batch_free(batch_); }

    /// Adds llama.cpp without its flash attention and with f32 cells: how far it differs from itself, with sequence 0.
    void measure_noise(llama_model* model) { noise_.push_back(reference(model, false)); }

    static maker by_name(engine::cache_options o) {
        return [o](llama_context_params& p, llama_model* m, const kvtl_llama::settings& s) {
            return kvtl_llama::attachment::by_name(p, m, s, o);
        };
    }

    /// The pieces in one batch of the attachment, nothing on the plain side.
    kvtl::status decode(const std::vector<piece>& pieces) {
        batch_.n_tokens = 0;
        for (const piece& p : pieces) add(p, p.seq, attached->held(p.seq));
        return attached->decode(batch_);
    }

    /// The pieces in one batch on one side, each by itself on the other; compares what was wished for. The plain side's
    /// choices after the last of each piece.
    tokens feed(const std::vector<piece>& pieces) {
        const auto done = decode(pieces);
        if (!done) FAIL(done.what());
        return follow(pieces);
    }
    /// The second half of feed(), after a decode() that went well.
    tokens follow(const std::vector<piece>& pieces) {
        tokens next;
        int row = 0;
        for (const piece& p : pieces) {
            auto& text = texts[static_cast<std::size_t>(p.seq)];
            llama_context* reference = plain[static_cast<std::size_t>(p.seq)].get();
            batch_.n_tokens = 0;
            add(p, 0, static_cast<llama_pos>(text.size())); // each is number 0 of its own context
            REQUIRE(llama_decode(reference, batch_) == 0);
            for (const auto& n : noise_) REQUIRE(llama_decode(n.get(), batch_) == 0);
            text.insert(text.end(), p.ids.begin(), p.ids.end());
            llama_token best = 0;
            for (int i = 0; i < static_cast<int>(p.ids.size()); ++i)
                if (p.wants == wish::all ||
                    (p.wants == wish::last && i + 1 == static_cast<int>(p.ids.size()))) {
                    const float* want = llama_get_logits_ith(reference, i);
                    best = compare(want, llama_get_logits_ith(context.get(), row + i));
                    for (const auto& n : noise_) add_noise(want, llama_get_logits_ith(n.get(), i));
                }
            row += static_cast<int>(p.ids.size());
            next.push_back(best);
        }
        return next;
    }

    /// A prompt or a further turn, in batches. The plain side's choice for the next token.
    llama_token prompt(llama_seq_id seq, const tokens& ids, std::size_t chunk = cells) {
        llama_token next = 0;
        for (std::size_t i = 0; i < ids.size(); i += chunk) {
            const std::size_t n = std::min(chunk, ids.size() - i);
            const auto from = ids.begin() + static_cast<std::ptrdiff_t>(i);
            const bool last = i + n == ids.size();
            next = feed({{seq, tokens(from, from + static_cast<std::ptrdiff_t>(n)),
                          last ? wish::last : wish::none}})
                       .front();
        }
        return next;
    }

    /// n steps from `next` on.
    llama_token steps(llama_seq_id seq, llama_token next, int n) {
        for (int i = 0; i < n; ++i) next = feed({{seq, {next}}}).front();
        return next;
    }

    /// Both sides.
    kvtl::status rewind(llama_seq_id seq, llama_pos position) {
        const auto done = attached->rewind(seq, position);
        if (done) rewind_plain(seq, position);
        return done;
    }
    void rewind_plain(llama_seq_id seq, llama_pos position) {
        auto& text = texts[static_cast<std::size_t>(seq)];
        for (const auto& n : noise_) REQUIRE(llama_memory_seq_rm(llama_get_memory(n.get()), 0, position, -1));
        REQUIRE(llama_memory_seq_rm(llama_get_memory(plain[static_cast<std::size_t>(seq)].get()), 0, position,
                                    -1));
        text.resize(static_cast<std::size_t>(position));
    }
    void end(llama_seq_id seq) {
        const auto ended = attached->end(seq);
        REQUIRE(ended.ok());
        rewind_plain(seq, 0);
    }

    void report(const std::string& what) const {
        MESSAGE(what << ": " << compared << " tokens, " << near << " near-ties, " << wrong
                     << " others, largest difference " << worst << ", of llama.cpp and itself " << noise);
    }

    std::unique_ptr<kvtl_llama::attachment> attached;
    context_ptr context;
    std::vector<context_ptr> plain;
    std::vector<tokens> texts; ///< of the plain side
    int compared = 0, near = 0, wrong = 0;
    float worst = 0;                   ///< of all logits
    float widest_difference = 0;       ///< margin of the plain side where the other chose differently
    float noise = 0, widest_noise = 0; ///< the same, of llama.cpp and itself

  private:
    void add(const piece& p, llama_seq_id seq, llama_pos at) {
        for (std::size_t i = 0; i < p.ids.size(); ++i) {
            const auto n = static_cast<std::size_t>(batch_.n_tokens++);
            batch_.token[n] = p.ids[i];
            batch_.pos[n] = at + static_cast<llama_pos>(i);
            batch_.n_seq_id[n] = 1;
            batch_.seq_id[n][0] = seq;
            batch_.logits[n] = p.wants == wish::all || (p.wants == wish::last && i + 1 == p.ids.size());
        }
    }
    llama_token compare(const float* want, const float* got) {
        REQUIRE(want != nullptr);
        REQUIRE(got != nullptr);
        const float *best = std::max_element(want, want + vocabulary_),
                    *other = std::max_element(got, got + vocabulary_);
        const auto a = best - want, b = other - got;
        ++compared;
        for (int i = 0; i < vocabulary_; ++i) worst = std::max(worst, std::fabs(want[i] - got[i]));
        if (a != b) ++(want[a] - want[b] < 4e-2F ? near : wrong);
        if (a != b) widest_difference = std::max(widest_difference, want[a] - want[b]);
        return static_cast<llama_token>(a);
    }
    void add_noise(const float* want, const float* got) {
        const auto a = std::max_element(want, want + vocabulary_) - want,
                   b = std::max_element(got, got + vocabulary_) - got;
        for (int i = 0; i < vocabulary_; ++i) noise = std::max(noise, std::fabs(want[i] - got[i]));
        widest_noise = std::max(widest_noise, want[a] - want[b]);
    }
    static context_ptr reference(llama_model* model, bool flash) {
        auto p = llama_context_default_params();
        p.n_ctx = max_tokens;
        p.n_batch = p.n_ubatch = cells;
        p.n_threads = p.n_threads_batch = 1;
        p.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        if (!flash) p.type_k = p.type_v = GGML_TYPE_F32;
        p.swa_full = true; // or else nothing could be rewound
        context_ptr made(llama_init_from_model(model, p));
        REQUIRE(made);
        return made;
    }

    std::vector<context_ptr> noise_;
    int vocabulary_;
    llama_batch batch_;
};

} // namespace hook
