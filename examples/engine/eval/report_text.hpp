// Small texts that all parts of the report share: figures, names of budgets, what occurs among rows.
// SPDX-License-Identifier: MIT
#pragma once

#include "plot.hpp"
#include "row.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

namespace eval {

inline std::string number(const std::optional<double>& value, const char* pattern, double unit = 1) {
    if (!value) return "–";
    char text[32];
    std::snprintf(text, sizeof text, pattern, *value / unit);
    return text;
}

inline std::string bytes(const std::optional<double>& value) {
    return value ? with_unit(*value) : "–";
}

/// A policy that evicts attends all that it keeps: there one number says both.
inline std::string budget_of(const row& r) {
    const std::string attended = std::to_string(r.attend_tokens) + " attended";
    if (!r.keep_tokens) return attended;
    const std::string kept = std::to_string(*r.keep_tokens) + " kept";
    return *r.keep_tokens == r.attend_tokens ? kept : kept + ", " + attended;
}

/// First appearance decides the order.
template <class Key> auto distinct(const std::vector<const row*>& rows, const Key& key) {
    std::vector<decltype(key(*rows.front()))> all;
    for (const row* r : rows)
        if (std::find(all.begin(), all.end(), key(*r)) == all.end()) all.push_back(key(*r));
    return all;
}

inline std::vector<std::string> policies_of(const std::vector<const row*>& rows) {
    return distinct(rows, [](const row& r) { return r.policy; });
}

inline std::vector<std::string> lines_of(const std::vector<const row*>& rows) {
    return distinct(rows, line_of);
}

inline std::vector<std::string> budgets_of(const std::vector<const row*>& rows) {
    return distinct(rows, budget_of);
}

} // namespace eval
