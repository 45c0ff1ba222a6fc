// SPDX-License-Identifier: MIT
#include "compare.hpp"
#include "error.hpp"
#include "memory_report.hpp"
#include "program.hpp"
#include "stopwatch.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace llama_bench {

namespace {

using llama_run::session;

/// One engine that is measured.
struct contender {
    std::string name;
    std::unique_ptr<session> engine;
    double prompt_s = 0;
    std::size_t prompt_tokens = 0;
    std::vector<double> steps{}; ///< seconds
};

} // namespace

nlohmann::ordered_json speed(const options& o, const speed_options& s) {
    const llama_run::loaded_model model(o.model);
    const std::size_t most = *std::max_element(s.contexts.begin(), s.contexts.end());
    const std::size_t measured = (s.steps + 1) * s.rounds;
    engine::require(std::is_sorted(s.contexts.begin(), s.contexts.end()) && s.contexts.front() > 2 * o.batch,
                    "--contexts: valid: rising, more than two batches each");
    std::vector<contender> all;
    all.push_back({plain, open(model, o, plain, most + measured + 8)});
    for (const auto& policy : o.policies)
        all.push_back({policy, open(model, o, policy, most + measured + 8)});
    llama_run::token_batch batch(o.batch);

    const auto pass = [&](contender& c, std::size_t tokens, bool last) {
        const std::size_t at = c.engine->held(0);
        batch.clear();
        for (std::size_t i = 0; i < tokens; ++i)
            batch.add(token_at(at + i, model.vocabulary()), at + i, 0, last && i + 1 == tokens);
        const stopwatch time;
        c.engine->decode(batch);
        if (last) static_cast<void>(c.engine->logits(tokens - 1));
        return time.seconds();
    };
    const auto read_to = [&](std::size_t context) { // a few batches of each engine in turn
        const std::size_t turn = 8 * std::size_t{o.batch};
        for (auto& c : all) c.engine->end(0), c.prompt_s = 0, c.prompt_tokens = 0;
        for (std::size_t begin = 0; begin < context; begin += turn) {
            const std::size_t end = std::min(context, begin + turn);
            for (auto& c : all) {
                let_threads_sleep();
                for (std::size_t at = begin; at < end; at += o.batch) {
                    const std::size_t n = std::min<std::size_t>(o.batch, end - at);
                    c.prompt_s += pass(c, n, at + n == context);
                    c.prompt_tokens += n;
                }
            }
            std::fprintf(stderr, "\rcontext %zu: %zu  ", context, end);
        }
    };
    const auto measure = [&] {
        for (auto& c : all) c.steps.clear();
        for (std::size_t round = 0; round < s.rounds; ++round)
            for (auto& c : all) {
                let_threads_sleep();
                static_cast<void>(pass(c, 1, true)); // warm
                for (std::size_t i = 0; i < s.steps; ++i) c.steps.push_back(pass(c, 1, true));
            }
    };

    // What a step takes beside attention: that of llama.cpp alone behind a few tokens.
    const double rest = [&] {
        static_cast<void>(pass(all[0], 16, true));
        std::vector<double> steps;
        for (std::size_t i = 0; i < measured / 2; ++i) steps.push_back(pass(all[0], 1, true));
        return median(steps);
    }();
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::size_t context : s.contexts) {
        read_to(context);
        const auto before = [&] {
            std::vector<engine::cache_stats> x;
            for (auto& c : all) x.push_back(c.engine->stats());
            return x;
        }();
        measure();
        const double base = median(all[0].steps), base_attend = base - rest;
        for (std::size_t i = 0; i < all.size(); ++i) {
            const contender& c = all[i];
            const double step = median(c.steps), attend = step - rest;
            const engine::cache_stats now = c.engine->stats();
            const auto n = static_cast<double>(measured);
            nlohmann::ordered_json shares = nlohmann::ordered_json::object(); // of plain: none
            for (const auto& [name, share] : engine::shares_of(now.memory())) shares[name] = share;
            rows.push_back(
                {{"policy", c.name},
                 {"context", context},
                 {"threads", o.threads},
                 {"attend_tokens", c.name == plain ? 0 : o.attend_tokens},
                 {"prompt_tokens_per_s", static_cast<double>(c.prompt_tokens) / c.prompt_s},
                 {"step_ms", step * 1e3},
                 {"rest_ms", rest * 1e3},
                 {"attend_ms", attend * 1e3},
                 {"step_ratio", base / step},
                 {"attend_ratio", attend > 0 ? base_attend / attend : 0},
                 {"cells", c.engine->cells()},
                 {"resident_bytes_peak", now.resident_bytes_peak},
                 {"raw_cache_bytes", now.raw_cache_bytes},
                 {"share_by_part", shares},
                 {"read_bytes_per_step", static_cast<double>(now.read_bytes - before[i].read_bytes) / n}});
        }
    }
    std::fprintf(stderr, "\n");
    return rows;
}

} // namespace llama_bench
