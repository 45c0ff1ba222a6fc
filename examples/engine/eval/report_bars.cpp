// SPDX-License-Identifier: MIT
#include "report_bars.hpp"

#include "report_text.hpp"

#include <array>
#include <iterator>
#include <span>
#include <tuple>

namespace eval {

namespace {

constexpr std::array phase_colours = {"#8a6bbf", "#3b82c4", "#2aa5b5", "#e07b39",
                                      "#3f9b57", "#a39b2a", "#d0504e", "#8b949c"};

constexpr std::array retained_colours = {"#3b82c4", "#e07b39"};

/// What the colours of bars stand for.
std::string colours(const std::vector<std::string>& names, std::span<const char* const> of) {
    std::string out = "<ul class=\"legend\">";
    for (std::size_t i = 0; i < names.size(); ++i)
        out += std::string("<li><i style=\"background:") + of[i % of.size()] + "\"></i>" + escaped(names[i]) +
               "</li>";
    out += "</ul>";
    return out;
}

double sum_of(const row& r) {
    double sum = 0;
    for (const auto& phase : r.phase_us) sum += phase.second;
    return sum;
}

} // namespace

std::string stacked_bars(const std::vector<stacked_bar>& bars, double longest) {
    std::string out = "<div class=\"bars\">";
    for (const stacked_bar& b : bars) {
        out += "<span>" + escaped(b.label) + "</span><div>";
        for (std::size_t i = 0; i < b.phase_us.size(); ++i) {
            const auto& [name, microseconds] = b.phase_us[i];
            out += "<i title=\"" + escaped(name) + ": " + number(microseconds, "%.1f µs") +
                   "\" style=\"width:" + number(microseconds, "%.2f%%", longest / 100) +
                   ";background:" + phase_colours[i % phase_colours.size()] + "\"></i>";
        }
        out += "</div><em>" + escaped(b.all) + "</em>";
    }
    return out + "</div>";
}

std::string phase_legend(const stacked_bar& b) {
    std::vector<std::string> names;
    for (const auto& phase : b.phase_us) names.push_back(phase.first);
    return colours(names, phase_colours);
}

std::string phase_bars(const std::vector<const row*>& rows) {
    std::string out;
    std::vector<const row*> timed;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(timed),
                 [](const row* r) { return !r->phase_us.empty(); });
    if (timed.empty()) return {};
    out += "<h3>Where the cache spends its time</h3><p>Microseconds per decoded token, summed over the "
           "threads that work for the cache.</p>";
    out += phase_legend({.label = {}, .phase_us = timed.front()->phase_us, .all = {}});
    double longest = 1e-9;
    for (const row* r : timed) longest = std::max(longest, sum_of(*r));
    const auto budgets = budgets_of(timed);
    for (const auto& b : budgets) {
        std::vector<stacked_bar> bars;
        for (const row* r : timed)
            if (budget_of(*r) == b)
                bars.push_back(
                    {.label = line_of(*r), .phase_us = r->phase_us, .all = number(sum_of(*r), "%.0f µs")});
        out += std::string("<details") + (b == budgets.back() ? " open" : "") + "><summary>" + escaped(b) +
               "</summary>" + stacked_bars(bars, longest) + "</details>";
    }
    return out;
}

std::string kept_bars(const std::vector<const row*>& rows) {
    std::string out;
    double most = 1e-9;
    for (const row* r : rows)
        for (const double kept : r->kept_by_layer) most = std::max(most, kept);
    for (const row* r : rows) {
        if (r->kept_by_layer.empty()) continue;
        if (out.empty())
            out = "<h3>What each layer keeps</h3><p>Entries per KV head when the answer is there, what was "
                  "decoded "
                  "included.</p>";
        out += "<details><summary>" + escaped(line_of(*r) + ", " + budget_of(*r) + ", " + r->task) +
               "</summary><div class=\"bars\">";
        for (std::size_t l = 0; l < r->kept_by_layer.size(); ++l)
            out += "<span>layer " + std::to_string(l) +
                   "</span><div><i style=\"width:" + number(r->kept_by_layer[l], "%.2f%%", most / 100) +
                   ";background:" + retained_colours[0] + "\"></i></div><em>" +
                   number(r->kept_by_layer[l], "%.0f") + "</em>";
        out += "</div></details>";
    }
    return out;
}

std::string retained_bars(const std::vector<const row*>& rows) {
    std::string out;
    std::vector<const row*> ragged;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(ragged),
                 [](const row* r) { return !r->retained_by_layer.empty(); });
    if (ragged.empty()) return {};
    out += "<h3>What a token takes</h3><p>Share of its row of 16-bit numbers, headers of records "
           "included; sinks and window are encoded for this as well.</p>";
    out += colours({"keys", "values"}, retained_colours);
    for (const row* r : ragged) {
        out += "<details open><summary>" + escaped(line_of(*r) + ", " + budget_of(*r)) +
               "</summary><div class=\"bars\">";
        for (const auto* all : {&r->retained_by_kind, &r->retained_by_layer})
            for (const row::retained_share& s : *all) {
                out += "<span>" + escaped(s.of) + "</span><div>";
                for (const auto& [what, value, colour] :
                     {std::tuple{"keys", s.keys, retained_colours[0]},
                      std::tuple{"values", s.values, retained_colours[1]}})
                    out += std::string("<i title=\"") + what + ": " + number(value, "%.3f") +
                           "\" style=\"width:" + number(std::min(value, 1.0), "%.2f%%", 1.0 / 50) +
                           ";background:" + colour + "\"></i>";
                out += "</div><em>" + number((s.keys + s.values) / 2, "%.3f") + "</em>";
            }
        out += "</div></details>";
    }
    return out;
}

} // namespace eval
