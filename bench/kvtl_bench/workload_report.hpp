// kvtl-bench workload: what the generator's knobs were calibrated by, and how close it is.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

struct report_options {
    std::string trace;      ///< "" for none
    std::uint64_t seed = 1; ///< of the generator
    std::size_t tokens = 0; ///< 0: all of the trace
};

/// {"shape", "prompt_tokens", "tokens", "statistics": [{"name", "trace", "drift", "distance"}],
/// "mean_distance"}. The distance of two statistics is |a - b| / (|a| + |b|): 0 for equal, 1 for unlike.
/// Throws engine::bad_input.
[[nodiscard]] nlohmann::ordered_json report_workload(const report_options& o);

/// The same as a table, on standard output.
void print_report(const nlohmann::ordered_json& report);

} // namespace bench
