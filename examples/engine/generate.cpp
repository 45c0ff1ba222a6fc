// SPDX-License-Identifier: MIT
#include "generate.hpp"

#include "error.hpp"
#include "sampler.hpp"
#include "stopwatch.hpp"

#include <algorithm>
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
                    const generate_options& options, const generate_events& events,
                    const resume_point* from) {
    generation run;
    sampler choice(options.temperature, options.seed);

    const stopwatch reading;
    std::span<const float> logits;
    if (from == nullptr) {
        t.begin();
    } else {
        if (!choice.go_on_from(from->sampler))
            throw bad_input("--load-state: the sampler's state cannot be read");
        for (const token_id token : from->unread) logits = t.step(token); // as it would have gone on
    }
    if (!prompt.empty()) logits = t.prefill(prompt, events.prefilled);
    run.prefill_s = reading.seconds();

    while (run.tokens.size() < options.predict) {
        const token_id next = choice.choose(logits);
        if (!options.ignore_end && words.is_end(next)) break;
        run.tokens.push_back(next);
        if (options.top_logits != 0) run.logits.push_back(highest(logits, options.top_logits));
        if (events.generated) events.generated(next);
        if (run.tokens.size() == options.predict) break;
        const stopwatch step;
        logits = t.step(next);
        run.decode_s += step.seconds();
        ++run.steps;
    }
    run.sampler = choice.state();
    return run;
}

} // namespace engine
