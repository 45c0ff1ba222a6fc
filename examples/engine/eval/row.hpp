// One line of an evaluation: a policy, a task, a budget and what was measured. kvtl-eval fills all of it, the
// demo what it has; the report shows what is there.
//
// Units: bytes, entries and reads are those of decoding unless their name says otherwise; nats; microseconds.
// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eval {

struct row {
    std::string policy;
    std::string variant; ///< settings that tell the row from others of its policy: "rate=.20"; or empty
    std::string task;
    std::string question; ///< "hidden" while the policy compressed, "known", or empty: the task has none
    std::size_t attend_tokens = 0;
    std::optional<std::size_t> keep_tokens;                  ///< empty: the policy's default, or it keeps all
    std::vector<std::pair<std::string, std::string>> config; ///< ("slot.field", value) as it ran
    std::optional<std::string> error;                        ///< why the policy could not run

    /// What was asked first, what is right, and what the policy said: the same question for all rows of a task.
    struct first_answer {
        std::string question, expected, given;
        bool right = false;
    };
    std::optional<first_answer> first;
    bool evicts = false; ///< what the policy gave up is gone, whatever is asked later

    // Quality. What a task cannot give stays empty.
    std::optional<double> accuracy;
    std::optional<std::array<double, 2>> accuracy_ci95; ///< Wilson's interval: low, high
    std::optional<double> nll;                          ///< nats per token, teacher-forced
    std::optional<double> nll_full;                     ///< the same tokens with everything attended
    std::optional<double> kl;                           ///< mean KL(full || policy) of next tokens
    std::optional<double> kl_max;                       ///< the largest KL of one next token
    std::optional<double> top1_agreement;               ///< share of next tokens on which both agree
    std::optional<double> output_error; ///< mean |o - o_full| / |o_full| of a layer's attention
    std::optional<double> mass_recall;  ///< share of the full softmax mass that was attended exactly

    // Cost.
    std::vector<double>
        kept_by_layer; ///< entries per KV head when the answer is there; empty: nothing is evicted
    std::optional<double> kept_bytes; ///< of the entries the policy still has, as they are stored
    std::optional<double>
        bytes_per_entry; ///< of one KV head; headers and whatever else records hold included
    std::optional<double> calibration_bytes;   ///< DRAM of what was fitted to the model: bases, gates
    std::optional<double> resident_bytes_peak; ///< DRAM of the cache, these included
    std::vector<std::pair<std::string, std::uint64_t>> bytes_by_part; ///< of what it reserved
    std::uint64_t raw_cache_bytes = 0; ///< what they are measured against: everything as f16
    std::optional<double> read_bytes_per_token;
    std::optional<double> useful_bytes_per_token;
    std::optional<double> reads_per_token;
    std::optional<double> read_entries;      ///< read per KV head, layer and token
    std::optional<double> mean_read_entries; ///< chosen entries per read
    std::optional<double> hit_rate;
    std::optional<double> selectable_entries; ///< mean of what the budget left to choose after all that is
                                              ///< always attended; empty: nothing chooses
    std::optional<double> empty_choices;      ///< share of the choices that could not take a single unit
    std::optional<double> scored_per_token, compared_per_token,
        opened_per_token;                                 ///< what choices take (statistics.hpp)
    std::optional<double> tokens_per_s;                   ///< of the whole engine
    std::optional<double> prefill_s;                      ///< taking a prompt in, without the model
    std::vector<std::pair<std::string, double>> phase_us; ///< per decoded token

    /// Mean share of a row's 16-bit numbers that records take, sinks and window encoded too; empty where all take the same.
    struct retained_share {
        std::string of; ///< "first", "layer 0"
        double keys = 0, values = 0;
    };
    std::vector<retained_share> retained_by_kind, retained_by_layer;

    std::size_t examples = 0;
    std::size_t decoded_tokens = 0;
    std::string io; ///< what really ran
    bool direct = false;
};

/// Exact share of `right` among `n` with the 95 % interval of Wilson, which stays inside 0 to 1.
[[nodiscard]] std::array<double, 2> wilson95(std::size_t right, std::size_t n);

/// The policy, and its variant where there are several: a line of a table.
[[nodiscard]] inline std::string line_of(const row& r) {
    return r.variant.empty() ? r.policy : r.policy + ", " + r.variant;
}

/// exp(nll - nll_full), 1 for the full model itself.
[[nodiscard]] inline std::optional<double> perplexity_ratio(const row& r) {
    if (!r.nll || !r.nll_full) return {};
    return std::exp(*r.nll - *r.nll_full);
}

/// A line for each row whose budget left its selector without a unit to choose in some of the steps.
void print_starved(std::FILE* out, const std::vector<row>& rows);

/// A line for each row that ran: what the parts of its cache take, and their shares of the raw cache.
void print_memory(std::FILE* out, const std::vector<row>& rows);

/// A JSON array with one object per row; what is not there is null.
[[nodiscard]] std::string to_json(const std::vector<row>& rows);

/// The JSON array `earlier` (empty text: none) with these rows behind its own, each with `facts` as further keys. Throws
/// bad_input, which names `file`, when `earlier` is not an array.
[[nodiscard]] std::string append_json(const std::string& earlier, const std::string& file,
                                      const std::vector<row>& rows,
                                      const std::vector<std::pair<std::string, std::string>>& facts);

} // namespace eval
