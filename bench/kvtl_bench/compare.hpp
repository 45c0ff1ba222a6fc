// kvtl-bench compare: what changed between two files of rows, those of `kvtl-bench decode --json` or of `kvtl-eval --json`.
//
// Rows belong together where all that identifies a row (policy, shape, context, batch, device, task, budgets, memory)
// agrees; where several do, the first with the first. Compared are medians, counts and shares as they stand in the rows,
// as ratios of the second file to the first; times of decode rows come with a 95 % interval (median_interval.hpp), as the
// rows say how well their medians are known.
//
// Two files are two runs: their ratio also has in it what else the machine did. `kvtl-bench decode --interleave` compares
// within one.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace bench {

/// Rows of a file. Throws engine::bad_input for what is no array of rows.
[[nodiscard]] nlohmann::ordered_json read_rows(const std::string& file);

/// {"rows": [{"row", "key": {..}, "metrics": {NAME: {"a", "b", "ratio", "ratio_low", "ratio_high"}}}], "only_a": ["row"],
/// "only_b": [..]}; "row" is the key in words, a ratio that there is not is null. Throws engine::bad_input when no row of
/// `a` has its like in `b`.
[[nodiscard]] nlohmann::ordered_json compare_rows(const nlohmann::ordered_json& a,
                                                  const nlohmann::ordered_json& b);

/// On standard output.
void print_comparison(const nlohmann::ordered_json& comparison);

} // namespace bench
