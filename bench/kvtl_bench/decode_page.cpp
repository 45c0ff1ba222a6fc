// SPDX-License-Identifier: MIT
#include "decode_page.hpp"

#include "plot.hpp"
#include "report_bars.hpp"
#include "report_html.hpp"
#include "report_text.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace bench {

namespace {

using json = nlohmann::ordered_json;
using eval::number;

std::string text(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
}

/// What rows that stand together have in common.
std::string heading(const json& row) {
    const json& config = row["config"];
    return text(row["policy"]) + ", " + text(row["device"]) + " device" +
           (row["simulated"].get<bool>() ? " (simulated)" : "") + ", " + text(config["attend_tokens"]) +
           " attended, " + number(config["memory_mib"].get<double>(), "%.4g MiB");
}

/// Bars have the time of a step as it was on average, compute as the engine asked for it.
eval::stacked_bar bar(const json& row) {
    eval::stacked_bar b;
    const double compute = row["config"]["compute_us_per_layer"].get<double>();
    b.label = number(compute, "%.0f µs of compute per layer");
    for (const auto& [phase, us] : row["phase_us"].items()) b.phase_us.emplace_back(phase, us.get<double>());
    b.phase_us.emplace_back("compute", row["compute_ms_per_step"].get<double>() * 1e3);
    b.all = number(row["step_ms_median"].get<double>(), "%.1f ms");
    return b;
}

double length(const eval::stacked_bar& b) {
    double sum = 0;
    for (const auto& phase : b.phase_us) sum += phase.second;
    return sum;
}

} // namespace

std::string decode_page(const json& rows) {
    std::vector<std::pair<std::string, std::vector<eval::stacked_bar>>> groups;
    std::string refused;
    for (const json& row : rows) {
        if (!row["error"].is_null()) {
            refused += "<li>" + eval::escaped(text(row["policy"]) + ": " + text(row["error"])) + "</li>";
            continue;
        }
        const std::string of = heading(row);
        auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == of; });
        if (group == groups.end()) group = groups.insert(groups.end(), {of, {}});
        group->second.push_back(bar(row));
    }

    std::string body =
        "<p>Bars: microseconds of a step by phase, means over the steps, summed over the threads that work "
        "for "
        "the cache; their longest fills the width. fetch_wait is time in which a call has nothing to do but "
        "wait for the device. Beside them the median of the step times.</p>";
    double longest = 1e-9;
    for (const auto& [of, bars] : groups)
        for (const eval::stacked_bar& b : bars) longest = std::max(longest, length(b));
    if (!groups.empty()) body += eval::phase_legend(groups.front().second.front());
    for (const auto& [of, bars] : groups)
        body += "<h2>" + eval::escaped(of) + "</h2>" + eval::stacked_bars(bars, longest);
    if (!refused.empty()) body += "<h2>Did not run</h2><ul>" + refused + "</ul>";

    std::vector<std::pair<std::string, std::string>> facts;
    if (!rows.empty())
        for (const char* what : {"shape", "context", "batch"}) facts.emplace_back(what, text(rows[0][what]));
    return eval::page("Where a decode step spends its time", facts, body);
}

} // namespace bench
