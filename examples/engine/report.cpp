// SPDX-License-Identifier: MIT
#include "report.hpp"

#include "memory_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace engine {

std::string to_json(const run_report& report) {
    using json = nlohmann::ordered_json;
    json parts = json::object();
    for (const auto& [name, bytes] : report.stats.bytes_by_part) parts[name] = bytes;
    json shares = json::object();
    for (const auto& [name, share] : shares_of(report.stats.memory())) shares[name] = share;
    json all = {
        {"policy", report.policy},
        {"io", report.stats.io},
        {"direct", report.stats.direct},
        {"memory_backed", report.stats.memory_backed},
        {"registered_file", report.stats.registered_file},
        {"registered_arena", report.stats.registered_arena},
        {"products", report.stats.products},
        {"prompt_tokens", report.prompt_tokens},
        {"tokens", report.run.tokens},
        {"text", report.text},
        {"prefill_s", report.run.prefill_s},
        {"decode_s", report.run.decode_s},
        {"tokens_per_s", report.run.tokens_per_s()},
        {"stats",
         {{"resident_bytes_peak", report.stats.resident_bytes_peak},
          {"read_bytes", report.stats.read_bytes},
          {"useful_bytes", report.stats.useful_bytes},
          {"reads", report.stats.reads},
          {"written_bytes", report.stats.written_bytes},
          {"hit_rate", report.stats.hit_rate},
          {"mean_read_entries", report.stats.mean_read_entries},
          {"storage_bytes", report.stats.storage_bytes},
          {"bytes_by_part", parts},
          {"raw_cache_bytes", report.stats.raw_cache_bytes},
          {"share_by_part", shares}}},
    };
    if (!report.run.logits.empty()) {
        json& steps = all["logits"] = json::array();
        for (const auto& step : report.run.logits) {
            json& top = steps.emplace_back(json::array());
            for (const auto& [id, value] : step) top.push_back(json::array({id, value}));
        }
    }
    if (report.loaded) {
        all["loaded_tokens"] = report.loaded->tokens;
        all["load_s"] = report.loaded->seconds;
        all["exact"] = report.loaded->exact;
    }
    if (report.saved) {
        all["save_s"] = report.saved->seconds;
        all["saved_bytes"] = report.saved->bytes;
    }
    if (!report.engine.empty()) {
        all["engine"] = report.engine;
        all["cells"] = report.cells;
        all["process_resident_bytes_peak"] = report.process_resident_bytes_peak;
    }
    if (!report.answers.empty()) {
        json& answers = all["answers"] = json::array();
        for (const answer& a : report.answers)
            answers.push_back({{"prompt_tokens", a.prompt_tokens}, {"tokens", a.tokens}, {"text", a.text}});
    }
    // A generation may stop inside a character; what is not UTF-8 becomes U+FFFD instead of an exception.
    return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

void take_answers(run_report& report, std::vector<answer> answers) {
    for (const answer& each : answers) {
        report.prompt_tokens += each.prompt_tokens;
        report.run.tokens.insert(report.run.tokens.end(), each.tokens.begin(), each.tokens.end());
        report.text += each.text + "\n";
    }
    report.answers = std::move(answers);
}

void print_memory(const cache_stats& stats) {
    if (stats.raw_cache_bytes != 0) std::fprintf(stderr, "memory: %s\n", memory_line(stats.memory()).c_str());
}

void print_summary(const run_report& r) {
    const auto& s = r.stats;
    const double steps = static_cast<double>(std::max<std::size_t>(r.run.steps, 1));
    if (s.io.empty()) { // no cache of kvtl's
        std::fprintf(stderr, "%s: %zu prompt tokens in %.2f s, %zu tokens at %.1f/s\n", r.policy.c_str(),
                     r.prompt_tokens, r.run.prefill_s, r.run.tokens.size(), r.run.tokens_per_s());
        return;
    }
    std::fprintf(stderr,
                 "%s on %s%s: %zu prompt tokens in %.2f s, %zu tokens at %.1f/s, %.2f MiB resident, "
                 "%.1f KiB in %.1f reads per step, hit rate %.2f\n",
                 r.policy.c_str(), s.io.c_str(), s.direct ? " (direct)" : "", r.prompt_tokens,
                 r.run.prefill_s, r.run.tokens.size(), r.run.tokens_per_s(),
                 static_cast<double>(s.resident_bytes_peak) / (1 << 20),
                 static_cast<double>(r.decode_read_bytes.value_or(s.read_bytes)) / 1024 / steps,
                 static_cast<double>(r.decode_reads.value_or(s.reads)) / steps, s.hit_rate);
    print_memory(s);
}

} // namespace engine
