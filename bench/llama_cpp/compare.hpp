// kvtl-llama-bench: llama.cpp with its cache in kvtl beside llama.cpp as it is, on the same tokens in the same process.
// SPDX-License-Identifier: MIT
#pragma once

#include "session.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace llama_bench {

/// What both comparisons are told.
struct options {
    std::string model;
    std::vector<std::string> policies{"full", "dynakv"};
    std::size_t attend_tokens = 256; ///< 0: everything
    double memory_mib = 64;
    std::string io = "uring";
    std::string folder = "."; ///< of cache files
    unsigned threads = 2;
    std::uint32_t batch = 256; ///< tokens of one pass, and kvtl's cells
    std::vector<engine::setting> settings;
};

/// A session with a policy by name, or with "llama.cpp" alone, whose cells have this type.
[[nodiscard]] std::unique_ptr<llama_run::session> open(const llama_run::loaded_model& model, const options& o,
                                                       const std::string& policy, std::size_t max_tokens,
                                                       ggml_type cells = GGML_TYPE_F16);
inline const std::string plain = "llama.cpp";

struct agree_options {
    std::string task = "needle:gen,tokens=1900"; ///< eval/tasks.hpp
    std::string prose_file;                      ///< of generated tasks
    std::size_t limit = 0;
    double near_tie = 4e-2; ///< of logits: below, either token is right
};
/// Every policy is led along the tokens that llama.cpp alone generates, and then answers by itself. One row per policy.
[[nodiscard]] nlohmann::ordered_json agree(const options& o, const agree_options& a);

struct cell_options {
    std::vector<std::string> tasks{"nll:builtin", "needle:gen"}; ///< eval/tasks.hpp
    std::vector<std::string> types{"q8_0", "q4_0"};
    std::string prose_file; ///< of generated tasks
    std::size_t limit = 0;
};
/// llama.cpp alone with cells of fewer bits against its own of f16: the rows of kvtl-eval as JSON, one per task and type.
[[nodiscard]] std::string cells(const options& o, const cell_options& c);

struct speed_options {
    std::vector<std::size_t> contexts{1024, 2000};
    std::size_t steps = 16; ///< of one engine before the next has its turn
    std::size_t rounds = 5;
};
/// Prompts and steps in turn: llama.cpp, then each policy. One row per context and engine; attend_ms is what a step takes
/// more than one of llama.cpp alone behind a few tokens: attention, and with kvtl the hook.
[[nodiscard]] nlohmann::ordered_json speed(const options& o, const speed_options& s);

/// A step behind a few tokens, of llama.cpp alone and with a cache that does nothing. One row.
[[nodiscard]] nlohmann::ordered_json hook(const options& o, const speed_options& s);

} // namespace llama_bench
