// One run: read a prompt, generate tokens, measure both.
// SPDX-License-Identifier: MIT
#pragma once

#include "tokenizer.hpp"
#include "transformer.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace engine {

struct generate_options {
    std::size_t predict = 128; ///< most tokens to generate
    double temperature = 0;
    std::uint64_t seed = 1;
    bool ignore_end = false;    ///< go on behind the tokens that end a text
    std::size_t top_logits = 0; ///< how many logits of each step to keep
};

/// Called while it runs; either may be empty.
struct generate_events {
    std::function<void(std::size_t done)> prefilled; ///< tokens of the prompt
    std::function<void(token_id)> generated;
};

struct generation {
    std::vector<token_id> tokens;                                ///< without the token that ended the text
    std::vector<std::vector<std::pair<token_id, float>>> logits; ///< per token, highest first
    std::string sampler;                                         ///< its state behind the last choice
    double prefill_s = 0;  ///< the prompt, up to the logits of the first token
    double decode_s = 0;   ///< all steps after the first token
    std::size_t steps = 0; ///< in decode_s

    [[nodiscard]] double tokens_per_s() const {
        return decode_s > 0 ? static_cast<double>(steps) / decode_s : 0;
    }
};

/// How many of `predict` tokens the context has room for behind the prompt; says so where it is fewer. Throws bad_input
/// where it is none.
[[nodiscard]] std::size_t room_for(std::size_t predict, std::size_t prompt, std::size_t context,
                                   const char* program);

/// Where a text goes on that was saved.
struct resume_point {
    std::span<const token_id> unread; ///< chosen, but not fed back
    std::string sampler;              ///< state() of the sampler
};

/// Begins a sequence and runs it, or goes on in the one that the transformer has. The last token generated is not fed back.
/// Throws run_failure.
[[nodiscard]] generation generate(transformer& t, const tokenizer& words, std::span<const token_id> prompt,
                                  const generate_options& options, const generate_events& events = {},
                                  const resume_point* from = nullptr);

} // namespace engine
