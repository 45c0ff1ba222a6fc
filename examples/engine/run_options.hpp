// Options of the programs that generate text, kvtl-run, kvtl-llama and kvtl-server: the same names with the same meaning.
// SPDX-License-Identifier: MIT
#pragma once

#include "generate.hpp"
#include "kv_cache.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace CLI { // NOLINT(readability-identifier-naming): CLI11 calls it that
class App;
}

namespace engine {

struct run_options {
    std::string model;
    std::optional<std::string> prompt;
    std::string prompt_file;
    std::string json_file;
    std::string calibration;
    std::string gates;
    std::string votes;
    std::string share_layers;
    std::string load_state, save_state;
    std::string policy = "dynakv";
    std::string io = "uring";
    std::string kv_path; ///< default ./kvtl-PID.kv
    std::size_t attend_tokens = 256;
    std::size_t keep_tokens = 0;
    std::optional<std::size_t> prefill_chunk;
    double memory_mib = 64;
    unsigned threads = 2;
    unsigned shards = 0;
    bool list_policies = false;
    std::vector<std::string> settings;
    generate_options generate;

    run_options();
};

/// The cache and the threads: from --policy to --votes.
void define_cache_options(CLI::App& app, run_options& o);

/// These and all others of a run. `models` says which files -m takes.
void define_run_options(CLI::App& app, run_options& o, const char* program, const char* models);

/// Once the program has defined its own options too: whole numbers, and of an option given twice the last one counts.
void finish_options(CLI::App& app, const std::vector<const char*>& whole_numbers = {});

/// All but the prompt. Throws bad_input.
void check_run_options(const run_options& o);

/// Whether the file of --save-state can be made. Throws bad_input.
void check_save_state(const run_options& o);

/// The whole of it, or of standard input for "-". Throws bad_input.
[[nodiscard]] std::string read_prompt_file(const std::string& path);

/// What does not depend on the model. Throws bad_input.
[[nodiscard]] cache_options cache_options_of(const run_options& o);

} // namespace engine
