// Rows as one self-contained HTML page: plots of quality against bytes kept, in memory and read, bars of the
// time per phase, a table with one line per policy, which says why when one could not run. No script, nothing
// loaded from elsewhere; light and dark; narrow screens get one plot below the other, and only the tables
// scroll sideways.
//
// It depends on nothing but the standard library, so that any program with rows can write a report.
// SPDX-License-Identifier: MIT
#pragma once

#include "row.hpp"

#include <string>
#include <utility>
#include <vector>

namespace eval {

struct report {
    std::string title;
    std::vector<std::pair<std::string, std::string>> facts; ///< shown below the title: what, value
    std::vector<row> rows;
};

[[nodiscard]] std::string to_html(const report& r);

/// A page of that look with another body (HTML), for programs with pictures of their own.
[[nodiscard]] std::string page(const std::string& title,
                               const std::vector<std::pair<std::string, std::string>>& facts,
                               const std::string& body);

} // namespace eval
