// SPDX-License-Identifier: MIT
#include "compare.hpp"

#include "error.hpp"
#include "input_file.hpp"
#include "median_interval.hpp"

#include <array>
#include <cstdio>
#include <string_view>
#include <vector>

namespace bench {

namespace {

using json = nlohmann::ordered_json;

/// What identifies a row: in the row itself or in its config; and how it is said, the value in place of %. What is as usual is
/// as good as not there.
struct key_field {
    const char* name;
    std::string_view words;
    int usual = -1;
};
constexpr std::array key_fields = {key_field{"policy", "%"},
                                   key_field{"shape", "%"},
                                   key_field{"context", "context %"},
                                   key_field{"batch", "batch %"},
                                   key_field{"threads", "threads %", 1},
                                   key_field{"shards", "shards %"},
                                   key_field{"workload", "%"},
                                   key_field{"device", "%"},
                                   key_field{"task", "%"},
                                   key_field{"question", "question %"},
                                   key_field{"attend_tokens", "% attended"},
                                   key_field{"keep_tokens", "% kept"},
                                   key_field{"memory_mib", "% MiB"}};

constexpr std::array metrics = {
    // decode
    "step_ms_median", "step_ms_p99", "tokens_per_s", "cpu_s_per_step", "prefill_s", "read_bytes_per_step",
    "useful_bytes_per_step", "reads_per_step",
    // eval
    "accuracy", "nll", "kl", "output_error", "read_bytes_per_token", "useful_bytes_per_token",
    "reads_per_token",
    // both
    "hit_rate", "reuse_rate", "mean_read_entries", "mass_recall", "resident_bytes_peak", "storage_bytes"};

json key_of(const json& row) {
    json key = json::object();
    for (const key_field& f : key_fields) {
        const auto in_row = row.find(f.name);
        if (in_row != row.end()) {
            key[f.name] = *in_row;
        } else if (const auto config = row.find("config"); config != row.end() && config->contains(f.name)) {
            key[f.name] = config->at(f.name);
        }
        if (key.contains(f.name) && key[f.name] == f.usual) key.erase(f.name);
    }
    // As usual are a shard for each thread, too, and the generator's first text.
    const auto threads = row.find("threads");
    const json of_threads = threads != row.end() ? *threads : json(1);
    if (key.contains("shards") && key["shards"] == of_threads) key.erase("shards");
    if (key.contains("workload") && key["workload"] == "drift:1") key.erase("workload");
    return key;
}

std::string in_words(const json& key) {
    std::string text;
    for (const key_field& f : key_fields) {
        const auto value = key.find(f.name);
        if (value == key.end() || value->is_null() || *value == 0) continue; // 0: the policy's own default
        const std::string said = value->is_string() ? value->get<std::string>() : value->dump();
        const std::size_t at = f.words.find('%');
        text += (text.empty() ? "" : ", ") + std::string(f.words.substr(0, at)) + said +
                std::string(f.words.substr(at + 1));
    }
    return text;
}

std::optional<double> number_at(const json& row, const char* name) {
    const auto value = row.find(name);
    if (value == row.end() || !value->is_number()) return std::nullopt;
    return value->get<double>();
}

/// Of the ratio of the medians of a step.
std::optional<interval> step_interval(const json& a, const json& b) {
    const auto term = [](const json& row) -> std::optional<interval> {
        const auto low = number_at(row, "step_ms_low"), high = number_at(row, "step_ms_high");
        if (!low || !high) return std::nullopt;
        return interval{*low, *high};
    };
    const auto of_a = term(a), of_b = term(b);
    const auto x = number_at(a, "step_ms_median"), y = number_at(b, "step_ms_median");
    if (!of_a || !of_b || !x || !y) return std::nullopt;
    return ratio_interval(*x, *of_a, *y, *of_b);
}

json compare_metrics(const json& a, const json& b) {
    const auto steps = step_interval(a, b);
    json all = json::object();
    for (const char* name : metrics) {
        const auto x = number_at(a, name), y = number_at(b, name);
        if (!x || !y) continue;
        json& m = all[name] = {{"a", *x},
                               {"b", *y},
                               {"ratio", *x > 0 ? json(*y / *x) : json()},
                               {"ratio_low", nullptr},
                               {"ratio_high", nullptr}};
        if (!steps) continue;
        if (std::string_view(name) == "step_ms_median")
            m["ratio_low"] = steps->low, m["ratio_high"] = steps->high;
        if (std::string_view(name) == "tokens_per_s") // the batch over the median of a step
            m["ratio_low"] = 1 / steps->high, m["ratio_high"] = 1 / steps->low;
    }
    return all;
}

} // namespace

json read_rows(const std::string& file) {
    const auto text = engine::read_input(file, engine::most_rows_bytes);
    if (!text) throw engine::bad_input("compare: " + text.error().message);
    json rows = json::parse(*text, nullptr, false);
    const auto is_row = [](const json& r) { return r.is_object() && r.contains("policy"); };
    bool good = rows.is_array() && !rows.empty();
    for (std::size_t i = 0; good && i < rows.size(); ++i) good = is_row(rows[i]);
    if (!good)
        throw engine::bad_input(
            "compare: " + file +
            " is no file of rows; valid: what kvtl-bench decode or kvtl-eval wrote for --json");
    return rows;
}

json compare_rows(const json& a, const json& b) {
    std::vector<json> keys;
    for (const json& row : b) keys.push_back(key_of(row));
    std::vector<bool> taken(keys.size());
    json out = {{"rows", json::array()}, {"only_a", json::array()}, {"only_b", json::array()}};
    for (const json& row : a) {
        const json key = key_of(row);
        std::size_t i = 0;
        while (i < keys.size() && (taken[i] || keys[i] != key)) ++i;
        if (i == keys.size()) {
            out["only_a"].push_back(in_words(key));
            continue;
        }
        taken[i] = true;
        out["rows"].push_back(
            {{"row", in_words(key)}, {"key", key}, {"metrics", compare_metrics(row, b[i])}});
    }
    for (std::size_t i = 0; i < keys.size(); ++i)
        if (!taken[i]) out["only_b"].push_back(in_words(keys[i]));
    if (out["rows"].empty())
        throw engine::bad_input(
            "compare: no row of the first file has its like in the second; the first begins with " +
            in_words(key_of(a.front())) + ", the second with " + in_words(keys.front()));
    return out;
}

void print_comparison(const json& comparison) {
    for (const json& row : comparison["rows"]) {
        std::printf("%s\n", row["row"].get<std::string>().c_str());
        for (const auto& [name, m] : row["metrics"].items()) {
            std::printf("  %-24s %14.6g -> %-14.6g", name.c_str(), m["a"].get<double>(),
                        m["b"].get<double>());
            if (m["ratio"].is_null())
                std::printf(" no ratio\n");
            else if (m["ratio_low"].is_null())
                std::printf(" x %.3f\n", m["ratio"].get<double>());
            else
                std::printf(" x %.3f (%.3f to %.3f)\n", m["ratio"].get<double>(),
                            m["ratio_low"].get<double>(), m["ratio_high"].get<double>());
        }
    }
    const auto lone = [&](const char* list, const char* file) {
        for (const json& row : comparison[list])
            std::printf("only in the %s: %s\n", file, row.get<std::string>().c_str());
    };
    lone("only_a", "first");
    lone("only_b", "second");
    std::printf("Ratios are the second file's to the first's; in parentheses 95 %% intervals, of times whose "
                "rows have them. "
                "Other\nratios have none.\n");
}

} // namespace bench
