// kvtl-bench decode: the KV path of a decoding model, without its weights.
//
// A workload stands for the model: it yields q, k and v of every layer, outside all timers. The prompt goes
// in without attention; then each step appends and attends one token per sequence and layer, as an engine
// would, with an optional spin in place of the rest of the layer's work. A policy that evicts is given the
// prompt in one chunk with its queries, because that is what its memory is promised for.
//
// Several devices and times of compute share one prompt: the limit of the open cache's device is changed between the runs,
// and each run goes on where the one before stopped. The prompt itself is read in at the device's own speed. With keep_file
// budgets of memory share it too, from the largest to the smallest: a cache that is open gives memory back.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"
#include "memory_report.hpp"
#include "shapes.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace bench {

struct decode_options {
    std::string shape_name = "tiny-2k";
    kvtl::shape shape;
    double rope_base = 10'000;
    bool rope_neighbours = false; ///< keys of a trace that does not say so: pairs are (0, 1), (2, 3), ...
    std::size_t context = 1024;   ///< tokens of the prompt
    std::size_t batch = 1;
    std::size_t steps = 64;
    double max_seconds = 60; ///< of measured steps, per row
    std::vector<std::string> policies = {"dynakv"};
    std::vector<std::size_t> attend_tokens = {256};
    std::vector<std::size_t> keep_tokens = {0}; ///< of policies that evict; 0: as many as are attended
    std::vector<double> memory_mib = {64};
    std::vector<std::string> devices = {"native"};
    std::string io = "uring";
    std::string kv_path;
    std::string workload = "drift:1";
    std::vector<double> compute_us_per_layer = {0};
    unsigned threads = 1;
    unsigned shards = 0; ///< of each cache, taken by whichever thread is free; 0: one for each thread
    bool interleave = false;
    bool keep_file = false;     ///< budgets of memory share a prompt and its file
    bool prompt_queries = true; ///< the last chunk of a prompt comes with its queries
    bool announce = true;       ///< the engine says before_query() where a schedule wants it
    bool fit = true;            ///< an index that takes at most half of the memory: of the
                                ///< `size_candidates` largest ones the fastest, see size_probe.hpp
    unsigned size_candidates = 3;
    std::string calibration; ///< "": fitted to another text
    std::string gates;       ///< "": random
    std::vector<engine::setting> settings;

    static constexpr std::size_t warm_up = 8;
    static constexpr std::size_t least_steps = 3;
    static constexpr std::size_t probe_steps = 16; ///< of each size that is tried, after as many to warm up

    /// Rows that share a prompt when it is decoded on so many devices.
    [[nodiscard]] std::size_t runs(std::size_t on_devices) const {
        return on_devices * compute_us_per_layer.size() * (keep_file ? memory_mib.size() : 1);
    }
};

/// What a run takes at most, before it begins.
struct resources {
    double disk = 0;
    double memory = 0;
};
/// What these policies need while they are open together.
[[nodiscard]] resources needs(const decode_options& o, const std::vector<std::string>& policies,
                              bool in_memory);

/// Which policies are open at the same time: each alone, or with `interleave` as many as fit into 80 % of
/// what is free, in their order. Throws engine::bad_input when one does not even fit alone.
[[nodiscard]] std::vector<std::vector<std::string>> plan_rounds(const decode_options& o,
                                                                const resources& free, bool in_memory);

/// The smallest memory that each policy can be opened with at each of its budgets; nothing is run, memory_mib and fit do
/// not matter. Throws engine::bad_input.
[[nodiscard]] std::vector<engine::least_row> least_memory(const decode_options& o);

/// Runs everything and returns the rows. `begun` is called once when every policy could be opened, `row_done` sees each row
/// as soon as there is one. A policy that fails midway has a row with its "error" and "midway", and the others go on. Throws
/// engine::bad_input, or run_failure when the device itself fails.
[[nodiscard]] nlohmann::ordered_json
run_decode(const decode_options& asked, const std::function<void(const nlohmann::ordered_json&)>& row_done,
           const std::function<void()>& begun = {});

/// Throws engine::run_failure with the first policy that failed midway.
void require_finished(const nlohmann::ordered_json& rows);

} // namespace bench
