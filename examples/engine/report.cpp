// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <nlohmann/json.hpp>

namespace engine {

std::string to_json(const run_report& report) {
    using json = nlohmann::ordered_json;
    json parts = json::object();
    for (const auto& [name, bytes] : report.stats.bytes_by_part) parts[name] = bytes;
    json all = {
        {"policy", report.policy},
        {"io", report.stats.io},
        {"direct", report.stats.direct},
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
          {"bytes_by_part", parts}}},
    };
    if (!report.run.logits.empty()) {
        json& steps = all["logits"] = json::array();
        for (const auto& step : report.run.logits) {
            json& top = steps.emplace_back(json::array());
            for (const auto& [id, value] : step) top.push_back(json::array({id, value}));
        }
    }
    // A generation may stop inside a character; what is not UTF-8 becomes U+FFFD instead of an exception.
    return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace engine
