// Bars of the report: where a cache spends its time, what each layer keeps, and what a token takes where tokens differ. HTML, empty where no row
// has such figures.
// SPDX-License-Identifier: MIT
#pragma once

#include "row.hpp"

#include <string>
#include <utility>
#include <vector>

namespace eval {

/// A line whose phases lie one behind the other.
struct stacked_bar {
    std::string label;
    std::vector<std::pair<std::string, double>> phase_us; ///< the same phases in all bars of a picture
    std::string all;                                      ///< beside the bar
};
/// `longest`: microseconds that the full width stands for.
[[nodiscard]] std::string stacked_bars(const std::vector<stacked_bar>& bars, double longest);
/// What the colours of its phases stand for.
[[nodiscard]] std::string phase_legend(const stacked_bar& bar);

/// Microseconds per decoded token by phase, a bar per row, budget by budget.
[[nodiscard]] std::string phase_bars(const std::vector<const row*>& rows);

/// Of policies that evict: entries that each layer keeps, task by task.
[[nodiscard]] std::string kept_bars(const std::vector<const row*>& rows);

/// Of policies whose records have sizes of their own: what they make of each kind of token, and in each layer.
[[nodiscard]] std::string retained_bars(const std::vector<const row*>& rows);

} // namespace eval
