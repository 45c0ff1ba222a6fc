// SPDX-License-Identifier: MIT
#include "compare.hpp"
#include "demo_document.hpp"
#include "error.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "program.hpp"
#include "row.hpp"
#include "suggestion.hpp"
#include "tasks.hpp"
#include "tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace llama_bench {

namespace {

using engine::token_id;
using llama_run::session;

constexpr std::array types{GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,   GGML_TYPE_Q5_1,
                           GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q4_0};

ggml_type type_named(const std::string& name) {
    std::vector<std::string_view> names;
    for (const ggml_type t : types) {
        names.emplace_back(ggml_type_name(t));
        if (name == names.back()) return t;
    }
    throw engine::bad_input("--types: unknown type '" + name + "'; " + engine::valid_names(name, names));
}

/// llama.cpp rotates the numbers of a head that become codes, unless this variable says otherwise.
bool rotates() {
    const char* const off = std::getenv("LLAMA_ATTN_ROT_DISABLE");
    return off == nullptr || std::atoi(off) == 0;
}

struct tally {
    std::size_t asked = 0, right = 0, predictions = 0, agreements = 0;
    double nll = 0, nll_full = 0, kl = 0, kl_max = 0;
};

/// Natural logarithms of the probabilities.
std::vector<double> log_softmax(std::span<const float> logits) {
    std::vector<double> out(logits.begin(), logits.end());
    const double top = *std::max_element(out.begin(), out.end());
    double sum = 0;
    for (const double x : out) sum += std::exp(x - top);
    for (double& x : out) x -= top + std::log(sum);
    return out;
}

std::size_t best_of(std::span<const float> logits) {
    return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::span<const float> step(session& s, token_id id, llama_run::token_batch& batch) {
    batch.clear();
    batch.add(id, s.held(0), 0, true);
    s.decode(batch);
    return s.logits(0);
}

void compare(std::span<const float> logits, std::span<const float> full, const token_id* next, tally& to) {
    const auto p = log_softmax(full), q = log_softmax(logits);
    double kl = 0;
    for (std::size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
    to.kl += kl;
    to.kl_max = std::max(to.kl_max, kl);
    to.agreements += best_of(full) == best_of(logits) ? 1 : 0;
    ++to.predictions;
    if (next != nullptr) to.nll -= q[*next], to.nll_full -= p[*next];
}

} // namespace

std::string cells(const options& o, const cell_options& c) {
    const engine::gguf_file file(o.model);
    const engine::tokenizer words(file);
    const auto head_dim = static_cast<std::int64_t>(engine::model(file).hyper().shape.head_dim);
    const llama_run::loaded_model model(o.model);
    eval::task_options how;
    how.prose_file = c.prose_file;
    how.limit = c.limit;
    std::vector<eval::task> tasks;
    std::size_t most = 0;
    for (const auto& name : c.tasks) {
        tasks.push_back(eval::make_task(name, words, model.trained_context(), how));
        for (const eval::example& e : tasks.back().examples)
            engine::require(e.earlier.empty(), "--task " + name + ": valid: one question for a document");
        most = std::max(most, tasks.back().most_tokens() + 2);
    }
    std::vector<ggml_type> wanted{GGML_TYPE_F16};
    for (const auto& name : c.types)
        if (const ggml_type t = type_named(name); t != GGML_TYPE_F16) wanted.push_back(t);
    std::vector<std::unique_ptr<session>> sessions;
    for (const ggml_type t : wanted) sessions.push_back(open(model, o, plain, most, t));

    llama_run::token_batch batch(std::max<std::size_t>(o.batch, 1));
    std::vector<eval::row> rows;
    for (const eval::task& t : tasks) {
        std::vector<tally> tallies(wanted.size());
        std::size_t done = 0;
        for (const eval::example& e : t.examples) {
            std::vector<std::vector<float>> full; // behind each token that is decoded, of f16
            for (std::size_t i = 0; i < wanted.size(); ++i) {
                session& s = *sessions[i];
                tally& to = tallies[i];
                for (std::size_t at = 0; at < e.prefill;) {
                    batch.clear();
                    for (const std::size_t end = std::min(e.prefill, at + s.batch()); at < end; ++at)
                        batch.add(e.tokens[at], at, 0, at + 1 == e.prefill);
                    s.decode(batch);
                }
                std::span<const float> logits = s.logits(batch.size() - 1);
                for (std::size_t at = e.prefill; at < t.forced_tokens(e); ++at) {
                    logits = step(s, e.tokens[at], batch);
                    if (i == 0) full.emplace_back(logits.begin(), logits.end());
                    compare(logits, full[at - e.prefill],
                            t.kind == eval::task_kind::nll ? &e.tokens[at + 1] : nullptr, to);
                }
                if (t.kind == eval::task_kind::needle) {
                    std::string text;
                    for (std::size_t n = 1;; ++n) {
                        const auto token = static_cast<token_id>(best_of(logits));
                        if (words.is_end(token)) break;
                        text += words.piece(token);
                        if (engine::without_spaces(text).size() >= e.answer.size() ||
                            n >= e.most_answer_tokens)
                            break;
                        logits = step(s, token, batch);
                    }
                    ++to.asked;
                    to.right += engine::without_spaces(text).starts_with(e.answer) ? 1 : 0;
                }
                s.end(0);
            }
            std::fprintf(stderr, "\r%s: %zu of %zu", t.name.c_str(), ++done, t.examples.size());
        }
        std::fprintf(stderr, "\n");
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const tally& of = tallies[i];
            const auto mean = [](double sum, std::size_t n) { return sum / static_cast<double>(n); };
            eval::row r;
            r.policy = plain;
            r.config.emplace_back("cells", ggml_type_name(wanted[i]));
            const bool rotated = ggml_is_quantized(wanted[i]) && head_dim % 64 == 0 && rotates();
            r.config.emplace_back("rotated", rotated ? "true" : "false");
            r.task = t.name;
            r.question = t.question();
            r.attend_tokens = most;
            if (of.asked != 0) {
                r.accuracy = mean(static_cast<double>(of.right), of.asked);
                r.accuracy_ci95 = eval::wilson95(of.right, of.asked);
            }
            if (of.predictions != 0) {
                r.kl = std::max(0.0, mean(of.kl, of.predictions));
                r.kl_max = of.kl_max;
                r.top1_agreement = mean(static_cast<double>(of.agreements), of.predictions);
            }
            if (t.kind == eval::task_kind::nll) {
                r.nll = mean(of.nll, of.predictions);
                r.nll_full = mean(of.nll_full, of.predictions);
            }
            r.bytes_per_entry = static_cast<double>(2 * ggml_row_size(wanted[i], head_dim));
            r.examples = t.examples.size();
            r.decoded_tokens = of.predictions;
            r.io = "memory";
            rows.push_back(std::move(r));
        }
    }
    return eval::to_json(rows);
}

} // namespace llama_bench
