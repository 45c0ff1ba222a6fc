// SPDX-License-Identifier: MIT
#include "compare.hpp"
#include "error.hpp"
#include "gguf.hpp"
#include "program.hpp"
#include "tasks.hpp"
#include "tokenizer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <span>

namespace llama_bench {

namespace {

using engine::token_id;
using llama_run::session;

struct choice {
    token_id best = 0;
    float margin = 0; ///< to the next best
    std::vector<float> logits;
};

choice choice_of(std::span<const float> logits) {
    choice c;
    c.best = static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    float second = -INFINITY;
    for (std::size_t i = 0; i < logits.size(); ++i)
        if (i != c.best) second = std::max(second, logits[i]);
    c.margin = logits[c.best] - second;
    c.logits.assign(logits.begin(), logits.end());
    return c;
}

/// The document in passes, the question token by token. Returns the choice behind the last token.
choice read(session& s, const eval::example& e, llama_run::token_batch& batch) {
    for (std::size_t at = 0; at < e.prefill;) {
        batch.clear();
        for (const std::size_t end = std::min(e.prefill, at + s.batch()); at < end; ++at)
            batch.add(e.tokens[at], at, 0, at + 1 == e.prefill);
        s.decode(batch);
    }
    for (std::size_t at = e.prefill; at < e.tokens.size(); ++at) {
        batch.clear();
        batch.add(e.tokens[at], at, 0, true);
        s.decode(batch);
    }
    return choice_of(s.logits(batch.size() - 1));
}

choice step(session& s, token_id id, llama_run::token_batch& batch) {
    batch.clear();
    batch.add(id, s.held(0), 0, true);
    s.decode(batch);
    return choice_of(s.logits(0));
}

std::string without_blanks(std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
}

} // namespace

nlohmann::ordered_json agree(const options& o, const agree_options& a) {
    const engine::gguf_file file(o.model);
    const engine::tokenizer words(file);
    const llama_run::loaded_model model(o.model);
    eval::task_options how;
    how.prose_file = a.prose_file;
    how.limit = a.limit;
    const eval::task task = eval::make_task(a.task, words, model.trained_context(), how);
    engine::require(task.kind == eval::task_kind::needle, "--task: valid: questions (needle:...)");

    const std::size_t most = task.most_tokens() + 2;
    const auto reference = open(model, o, plain, most);
    llama_run::token_batch batch(std::max<std::size_t>(o.batch, 1));
    struct tally {
        std::size_t tokens = 0, equal = 0, near = 0, right = 0;
        double largest = 0; ///< difference of a logit
        double largest_margin = 0;
    };
    std::vector<tally> tallies(o.policies.size());
    std::vector<std::unique_ptr<session>> sessions;
    for (const auto& policy : o.policies) sessions.push_back(open(model, o, policy, most));
    std::size_t right = 0, done = 0;
    const auto is_right = [&](const std::vector<token_id>& text, const eval::example& e) {
        return without_blanks(words.decode(text)).starts_with(without_blanks(e.answer));
    };
    for (const eval::example& e : task.examples) {
        std::vector<token_id> text;
        std::vector<choice> led{read(*reference, e, batch)};
        for (std::size_t i = 0; i < e.most_answer_tokens; ++i) {
            text.push_back(led.back().best);
            led.push_back(step(*reference, text.back(), batch));
        }
        led.pop_back();
        right += is_right(text, e);
        reference->end(0);
        for (std::size_t p = 0; p < sessions.size(); ++p) {
            session& s = *sessions[p];
            tally& t = tallies[p];
            const choice first = read(s, e, batch);
            const std::size_t prompt_end = s.held(0);
            choice c = first;
            bool same = true;
            for (std::size_t i = 0; i < led.size(); ++i) {
                ++t.tokens;
                for (std::size_t w = 0; w < c.logits.size(); ++w)
                    t.largest =
                        std::max(t.largest, std::abs(static_cast<double>(c.logits[w] - led[i].logits[w])));
                if (c.best == text[i])
                    ++t.equal;
                else if (static_cast<double>(led[i].margin) < a.near_tie)
                    ++t.near;
                else
                    t.largest_margin = std::max(t.largest_margin, static_cast<double>(led[i].margin));
                same = same && c.best == text[i];
                if (i + 1 < led.size()) c = step(s, text[i], batch);
            }
            std::vector<token_id> own = text;
            if (!same) { // back to the question's end, and on with its own tokens
                if (!s.rewind(0, prompt_end)) throw engine::run_failure("the answer cannot be rewound");
                own.clear();
                c = first;
                for (std::size_t i = 0; i < e.most_answer_tokens; ++i) {
                    own.push_back(c.best);
                    if (i + 1 < e.most_answer_tokens) c = step(s, own.back(), batch);
                }
            }
            t.right += is_right(own, e);
            s.end(0);
        }
        std::fprintf(stderr, "\r%zu of %zu", ++done, task.examples.size());
    }
    std::fprintf(stderr, "\n");
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    const auto n = static_cast<double>(task.examples.size());
    rows.push_back({{"policy", plain},
                    {"examples", task.examples.size()},
                    {"accuracy", static_cast<double>(right) / n},
                    {"cells", reference->cells()}});
    for (std::size_t p = 0; p < tallies.size(); ++p) {
        const tally& t = tallies[p];
        rows.push_back({{"policy", o.policies[p]},
                        {"examples", task.examples.size()},
                        {"attend_tokens", o.attend_tokens},
                        {"accuracy", static_cast<double>(t.right) / n},
                        {"tokens", t.tokens},
                        {"equal", t.equal},
                        {"near_ties", t.near},
                        {"different", t.tokens - t.equal - t.near},
                        {"largest_margin_of_different", t.largest_margin},
                        {"largest_logit_difference", t.largest},
                        {"cells", sessions[p]->cells()},
                        {"resident_bytes_peak", sessions[p]->stats().resident_bytes_peak}});
    }
    return rows;
}

} // namespace llama_bench
