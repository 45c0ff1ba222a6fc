// Who takes part in a comparison of policies, and who cannot.
//
//   auto names = parse_policies("all");
//   std::vector<contender> all = ...;                    // a policy at a budget each
//   const auto wants = try_all(all, options.io, "kvtl-eval");
//   require_any(all, names);
//   auto rows = run_task(an_evaluator, a_task, all, true);
//
// Every contender is opened once before anything runs: a bound too small for the last one shall not come
// after an hour. One that cannot be opened, or fails later, keeps its place among the rows and says there
// why.
// SPDX-License-Identifier: MIT
#pragma once

#include "evaluator.hpp"
#include "kv_cache.hpp"
#include "row.hpp"
#include "tasks.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace eval {

struct contender {
    engine::cache_options options; ///< its policy and budget included
    bool reference = false;        ///< a line to compare with: gets as much memory as it needs
    std::string variant{};         ///< row::variant
    std::string error;             ///< why it takes no part; empty while it does
    bool midway = false;           ///< it took part until then
};

/// Names separated by commas, each once, or `all` that are built in. Throws bad_input.
[[nodiscard]] std::vector<std::string> parse_policies(const std::string& list);

[[nodiscard]] bool built_in(std::string_view policy);

/// Opens and closes every contender as these tasks will; fills the errors. Returns all that those which
/// opened want of the engine; `io` becomes the device that the system really gives.
engine::cache_wants try_all(std::vector<contender>& all, std::string& io, const char* program,
                            const std::vector<task>& tasks = {});

/// Throws bad_input with the first reason when no policy of these takes part. `full`, which needs neither
/// file nor bound, counts only when it is alone.
void require_any(const std::vector<contender>& all, const std::vector<std::string>& names);

/// Every contender on every example of a task; a row each. Throws run_failure when the full model fails.
[[nodiscard]] std::vector<row> run_task(evaluator& measuring, const task& t, std::vector<contender>& all,
                                        bool open_loop);

/// Throws run_failure with the first contender that failed midway.
void require_finished(const std::vector<contender>& all);

} // namespace eval
