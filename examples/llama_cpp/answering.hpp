// Several prompts answered at once in one context: each batch has the next token of whoever is answering and as much of
// the prompts that are still to be read as fits. A place that gets free takes the next prompt.
// SPDX-License-Identifier: MIT
#pragma once

#include "generate.hpp"
#include "report.hpp"
#include "session.hpp"

#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace llama_run {

struct answering {
    engine::generate_options generate;
    unsigned at_once = 1;       ///< sequences of the session
    bool whole_prompts = false; ///< a prompt comes in one batch: for policies that evict at its end
    /// The only prompt goes on from what sequence 0 holds. It may be empty: then `unread` is one token, which is decoded.
    std::optional<engine::resume_point> from;
};

/// Called while it runs; any may be empty.
struct answering_events {
    std::function<void(std::size_t read, std::size_t all)> read; ///< tokens of all prompts
    std::function<void(std::size_t prompt, token_id)> generated;
    std::function<void(std::size_t prompt)> answered;
    /// Before the sequence is given back, with where its sampler is.
    std::function<void(unsigned sequence, const engine::answer&, const engine::sampler&)> finished;
};

struct answers {
    std::vector<engine::answer> each; ///< in the order of the prompts
    std::vector<std::vector<std::pair<token_id, float>>>
        logits;                              ///< per token of the first prompt, highest first
    double read_s = 0;                       ///< batches that had tokens of prompts
    double generate_s = 0;                   ///< all others
    std::size_t steps = 0;                   ///< tokens in generate_s
    std::uint64_t read_bytes = 0, reads = 0; ///< of the cache, in generate_s
};

/// Every sequence is given back at its end. Throws run_failure.
[[nodiscard]] answers answer(session& s, std::span<const std::vector<token_id>> prompts, const answering& how,
                             const answering_events& events = {});

} // namespace llama_run
