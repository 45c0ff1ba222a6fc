// The result of kvtl-run and kvtl-llama as JSON, with the keys that other programs rely on, and as a line.
// SPDX-License-Identifier: MIT
#pragma once

#include "generate.hpp"
#include "kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace engine {

/// One of several prompts, or turns of a conversation.
struct answer {
    std::size_t prompt_tokens = 0;
    std::vector<token_id> tokens;
    std::string text;
};

struct run_report {
    std::string policy;
    std::size_t prompt_tokens = 0;
    std::string text;
    generation run;
    cache_stats stats;

    // Of other engines than the project's own; left out where `engine` is empty.
    std::string engine;    ///< name and version
    std::size_t cells = 0; ///< tokens that its own cache holds
    std::uint64_t process_resident_bytes_peak = 0;
    /// --load-state and --save-state; left out where there is none.
    struct loaded_state {
        std::uint64_t tokens = 0;
        double seconds = 0;
        bool exact = false; ///< what follows has the bits that it would have had
    };
    struct written_state {
        std::uint64_t bytes = 0;
        double seconds = 0;
    };
    std::optional<loaded_state> loaded;
    std::optional<written_state> saved;
    /// Of stats, what fell into decoding; where it is not known all of it is taken for that.
    std::optional<std::uint64_t> decode_read_bytes, decode_reads;
    std::vector<answer> answers; ///< where there are several; left out where empty
};

/// One object on one line, without a line end. `logits` is there when the run kept any.
[[nodiscard]] std::string to_json(const run_report& report);

/// Of a conversation: what all its turns had, and the turns.
void take_answers(run_report& report, std::vector<answer> answers);

/// What the memory is for, in a line on standard error; nothing where there is no cache of kvtl's.
void print_memory(const cache_stats& stats);

/// What it cost, in a line on standard error, and print_memory().
void print_summary(const run_report& report);

} // namespace engine
