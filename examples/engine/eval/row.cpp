// SPDX-License-Identifier: MIT
#include "row.hpp"

#include "error.hpp"
#include "memory_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace eval {

std::array<double, 2> wilson95(std::size_t right, std::size_t n) {
    if (n == 0) return {0, 1};
    constexpr double z = 1.959964;
    const double count = static_cast<double>(n);
    const double share = static_cast<double>(right) / count;
    const double shrink = 1 + z * z / count;
    const double centre = (share + z * z / (2 * count)) / shrink;
    const double half = z * std::sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / shrink;
    return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

namespace {

/// Breaks a line behind commas; what goes on in the next is indented.
std::string wrapped(const std::string& line, std::size_t width) {
    std::string out, rest = line;
    while (rest.size() > width) {
        const std::size_t comma = rest.rfind(", ", width - 2);
        if (comma == std::string::npos || comma < 8) break;
        out += rest.substr(0, comma + 1) + '\n';
        rest = "    " + rest.substr(comma + 2);
    }
    return out + rest;
}

} // namespace

void print_memory(std::FILE* out, const std::vector<row>& rows) {
    constexpr std::size_t width = 100;
    const char* head = "\nMemory by part, and its share of the raw cache (all keys and values as f16):\n";
    for (const row& r : rows) {
        if (r.error || r.raw_cache_bytes == 0) continue;
        std::string line = line_of(r) + ", " + std::to_string(r.attend_tokens) + " attended";
        if (r.keep_tokens) line += ", " + std::to_string(*r.keep_tokens) + " kept";
        line += ": " + engine::memory_line({r.bytes_by_part, r.raw_cache_bytes});
        std::fprintf(out, "%s%s\n", head, wrapped(line, width).c_str());
        head = "";
    }
    std::fflush(out);
}

void print_starved(std::FILE* out, const std::vector<row>& rows) {
    for (const row& r : rows)
        if (r.empty_choices && *r.empty_choices > 0)
            std::fprintf(
                out,
                "%s, %zu attended: no unit fits into the %.0f entries that are left to choose in %.0f %% of "
                "the choices\n",
                line_of(r).c_str(), r.attend_tokens, *r.selectable_entries, 100 * *r.empty_choices);
    std::fflush(out);
}

std::string to_json(const std::vector<row>& rows) {
    using json = nlohmann::ordered_json;
    const auto value = [](const auto& optional) { return optional ? json(*optional) : json(); };
    json all = json::array();
    for (const row& r : rows) {
        json config = json::object();
        for (const auto& [name, text] : r.config) config[name] = text;
        const auto shares = [](const std::vector<row::retained_share>& all_of) {
            json named = json::object();
            for (const auto& s : all_of) named[s.of] = {{"keys", s.keys}, {"values", s.values}};
            return named;
        };
        json retained; // null
        if (!r.retained_by_layer.empty())
            retained = {{"kinds", shares(r.retained_by_kind)}, {"layers", shares(r.retained_by_layer)}};
        json parts, part_shares; // null where it did not run
        for (const auto& [name, bytes] : r.bytes_by_part) parts[name] = bytes;
        for (const auto& [name, share] : engine::shares_of({r.bytes_by_part, r.raw_cache_bytes}))
            part_shares[name] = share;
        json phases = json::object();
        for (const auto& [name, microseconds] : r.phase_us) phases[name] = microseconds;
        all.push_back({{"policy", r.policy},
                       {"task", r.task},
                       {"question", r.question.empty() ? json() : json(r.question)},
                       {"attend_tokens", r.attend_tokens},
                       {"keep_tokens", value(r.keep_tokens)},
                       {"config", config},
                       {"error", value(r.error)},
                       {"accuracy", value(r.accuracy)},
                       {"accuracy_ci95", value(r.accuracy_ci95)},
                       {"nll", value(r.nll)},
                       {"nll_full", value(r.nll_full)},
                       {"perplexity_ratio", value(perplexity_ratio(r))},
                       {"kl", value(r.kl)},
                       {"kl_max", value(r.kl_max)},
                       {"top1_agreement", value(r.top1_agreement)},
                       {"output_error", value(r.output_error)},
                       {"mass_recall", value(r.mass_recall)},
                       {"kept_entries_by_layer", r.kept_by_layer},
                       {"kept_bytes", value(r.kept_bytes)},
                       {"bytes_per_entry", value(r.bytes_per_entry)},
                       {"calibration_bytes", value(r.calibration_bytes)},
                       {"resident_bytes_peak", value(r.resident_bytes_peak)},
                       {"bytes_by_part", parts},
                       {"raw_cache_bytes", r.raw_cache_bytes == 0 ? json() : json(r.raw_cache_bytes)},
                       {"share_by_part", part_shares},
                       {"read_bytes_per_token", value(r.read_bytes_per_token)},
                       {"useful_bytes_per_token", value(r.useful_bytes_per_token)},
                       {"reads_per_token", value(r.reads_per_token)},
                       {"read_entries", value(r.read_entries)},
                       {"mean_read_entries", value(r.mean_read_entries)},
                       {"hit_rate", value(r.hit_rate)},
                       {"selectable_entries", value(r.selectable_entries)},
                       {"empty_choices", value(r.empty_choices)},
                       {"scored_per_token", value(r.scored_per_token)},
                       {"compared_per_token", value(r.compared_per_token)},
                       {"opened_per_token", value(r.opened_per_token)},
                       {"tokens_per_s", value(r.tokens_per_s)},
                       {"prefill_s", value(r.prefill_s)},
                       {"phase_us", phases},
                       {"retained", retained},
                       {"examples", r.examples},
                       {"decoded_tokens", r.decoded_tokens},
                       {"io", r.io},
                       {"direct", r.direct}});
    }
    // A task's name may hold a path that is not UTF-8.
    return all.dump(1, ' ', false, json::error_handler_t::replace);
}

std::string append_json(const std::string& earlier, const std::string& file, const std::vector<row>& rows,
                        const std::vector<std::pair<std::string, std::string>>& facts) {
    using json = nlohmann::ordered_json;
    json all = earlier.empty() ? json::array() : json::parse(earlier, nullptr, false);
    if (!all.is_array())
        throw engine::bad_input(file + ": not a JSON array of rows; valid: a new file, or one that --json or "
                                       "--leaderboard wrote");
    for (json& added : json::parse(to_json(rows))) {
        for (const auto& [name, text] : facts) added[name] = text;
        all.push_back(std::move(added));
    }
    return all.dump(1, ' ', false, json::error_handler_t::replace) + '\n';
}

} // namespace eval
