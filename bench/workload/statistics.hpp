// What a policy sees of a workload: how attention is spread, how it changes from step to step, what keys look
// like. Measured alike on a trace and on the generator that stands for it.
//
// Cost: attention of `pairs` pairs of adjacent decode steps over all keys of the layers looked at, one
// k-means
//       and one eigen-decomposition (D x D) per KV head. Some seconds for the embedded model.
// SPDX-License-Identifier: MIT
#pragma once

#include "workload.hpp"

#include <string>
#include <vector>

namespace bench {

struct workload_statistics {
    double sink_mass = 0;       ///< attention on the first 4 tokens
    double recent_mass = 0;     ///< attention on the last 32 tokens
    double top_mass = 0;        ///< attention on the best 5 % of tokens
    double entropy = 0;         ///< of attention, as a share of log T
    double step_overlap = 0;    ///< of the best 64 tokens (neither sinks nor recent) with the step before
    double repeat_16 = 0;       ///< the same, with 16 steps before
    double variance_growth = 0; ///< squared distance to the prompt's clusters: last / first quarter of decode
    double variance_ratio = 0;  ///< the same distance against that of the prompt's own keys, all of decode
    double key_norm_spread = 0; ///< deviation / mean of key lengths, without sinks
    double energy_half = 0;     ///< share of the keys' energy in the best D / 2 directions
    double energy_quarter = 0;  ///< in the best D / 4
    double prediction_cosine = 0; ///< predicted query and query

    /// (name, value) in the order above.
    [[nodiscard]] std::vector<std::pair<std::string, double>> list() const;
};

/// Of all layers and heads, tokens [0, tokens). Decode begins at prompt_tokens() of the workload.
[[nodiscard]] workload_statistics measure_workload(workload& w, std::size_t tokens, std::size_t pairs = 24);

} // namespace bench
