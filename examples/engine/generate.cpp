// SPDX-License-Identifier: MIT
#include "generate.hpp"

#include "error.hpp"
#include "sampler.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace engine {

std::size_t room_for(std::size_t predict, std::size_t prompt, std::size_t context, const char* program) {
    const std::size_t room = context - std::min(prompt, context);
    if (prompt > context || (room == 0 && predict > 0))
        throw bad_input("prompt of " + std::to_string(prompt) + " tokens " +
                        (prompt > context ? "is longer than" : "fills") + " the context of " +
                        std::to_string(context));
    if (predict <= room) return predict;
    std::fprintf(
        stderr,
        "%s: note: --predict %zu becomes %zu: the context of %zu has room for no more behind the prompt\n",
        program, predict, room, context);
    return room;
}

generation generate(transformer& t, const tokenizer& words, std::span<const token_id> prompt,
                    const generate_options& options, const generate_events& events) {
    using clock = std::chrono::steady_clock;
    const auto seconds_since = [](clock::time_point start) {
        return std::chrono::duration<double>(clock::now() - start).count();
    };
    generation run;
    sampler choice(options.temperature, options.seed);

    auto start = clock::now();
    t.begin();
    auto logits = t.prefill(prompt, events.prefilled);
    run.prefill_s = seconds_since(start);

    while (run.tokens.size() < options.predict) {
        const token_id next = choice.choose(logits);
        if (!options.ignore_end && words.is_end(next)) break;
        run.tokens.push_back(next);
        if (options.top_logits != 0) run.logits.push_back(highest(logits, options.top_logits));
        if (events.generated) events.generated(next);
        if (run.tokens.size() == options.predict) break;
        start = clock::now();
        logits = t.step(next);
        run.decode_s += seconds_since(start);
        ++run.steps;
    }
    return run;
}

} // namespace engine
