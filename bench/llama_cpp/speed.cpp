// SPDX-License-Identifier: MIT
#include "compare.hpp"
#include "error.hpp"
#include "program.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace llama_bench {

namespace {

using llama_run::session;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Threads of the engine that had its turn spin for a while before they sleep, and would take the next one's cores.
void let_threads_sleep() {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

double median(std::vector<double> x) {
    if (x.empty()) return 0;
    std::sort(x.begin(), x.end());
    return (x[(x.size() - 1) / 2] + x[x.size() / 2]) / 2;
}

/// One engine that is measured.
struct contender {
    std::string name;
    std::unique_ptr<session> engine;
    double prompt_s = 0;
    std::size_t prompt_tokens = 0;
    std::vector<double> steps{}; ///< seconds
    double short_step = 0;       ///< median at a context of one batch
};

/// The same tokens for everybody: speed does not depend on what they say.
engine::token_id token_at(std::size_t position, std::size_t vocabulary) {
    std::uint64_t z = position * 0x9E3779B97F4A7C15U + 1;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    return static_cast<engine::token_id>(16 + (z >> 33) % (vocabulary - 16));
}

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
        const auto start = std::chrono::steady_clock::now();
        c.engine->decode(batch);
        if (last) static_cast<void>(c.engine->logits(tokens - 1));
        return seconds_since(start);
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

    read_to(o.batch);
    measure();
    for (auto& c : all) c.short_step = median(c.steps);
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::size_t context : s.contexts) {
        read_to(context);
        const auto before = [&] {
            std::vector<engine::cache_stats> x;
            for (auto& c : all) x.push_back(c.engine->stats());
            return x;
        }();
        measure();
        const double base = median(all[0].steps), base_attend = base - all[0].short_step;
        for (std::size_t i = 0; i < all.size(); ++i) {
            const contender& c = all[i];
            const double step = median(c.steps), attend = step - c.short_step;
            const engine::cache_stats now = c.engine->stats();
            const auto n = static_cast<double>(measured);
            rows.push_back(
                {{"policy", c.name},
                 {"context", context},
                 {"threads", o.threads},
                 {"attend_tokens", c.name == plain ? 0 : o.attend_tokens},
                 {"prompt_tokens_per_s", static_cast<double>(c.prompt_tokens) / c.prompt_s},
                 {"step_ms", step * 1e3},
                 {"short_step_ms", c.short_step * 1e3},
                 {"attend_ms", attend * 1e3},
                 {"step_ratio", base / step},
                 {"attend_ratio", attend > 0 ? base_attend / attend : 0},
                 {"cells", c.engine->cells()},
                 {"resident_bytes_peak", now.resident_bytes_peak},
                 {"read_bytes_per_step", static_cast<double>(now.read_bytes - before[i].read_bytes) / n}});
        }
    }
    std::fprintf(stderr, "\n");
    return rows;
}

} // namespace llama_bench
