// SPDX-License-Identifier: MIT
#include "memory_report.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace engine {

namespace {

/// "total 2.10 MiB 35.0 %"
std::string amount(const std::string& name, std::uint64_t bytes, double share) {
    char text[64];
    const auto size = static_cast<double>(bytes);
    std::snprintf(text, sizeof text, bytes < 1 << 20 ? " %.1f KiB %.1f %%" : " %.2f MiB %.1f %%",
                  bytes < 1 << 20 ? size / 1024 : size / (1 << 20), 100 * share);
    return name + text;
}

/// `full` keeps everything in memory by definition: the programs open it whatever the bound is.
bool is_exempt(const least_row& row) {
    return row.policy == "full";
}

} // namespace

std::vector<std::pair<std::string, double>> shares_of(const memory_use& m) {
    std::vector<std::pair<std::string, double>> shares;
    if (m.raw_cache == 0) return shares;
    for (const auto& [name, bytes] : m.parts) shares.emplace_back(name, m.share(bytes));
    shares.emplace_back("total", m.share(m.total()));
    return shares;
}

std::string memory_line(const memory_use& m) {
    char raw[64];
    std::snprintf(raw, sizeof raw, " of the raw cache of %.2f MiB",
                  static_cast<double>(m.raw_cache) / (1 << 20));
    std::string text = amount("total", m.total(), m.share(m.total())) + raw;
    const char* between = ": ";
    for (const auto& [name, bytes] : m.parts) {
        if (bytes == 0) continue;
        text += between + amount(name, bytes, m.share(bytes));
        between = ", ";
    }
    return text;
}

std::string least_line(const least_row& row) {
    const std::string name = row.with.empty() ? row.policy : row.policy + ", " + row.with;
    if (!row.need) return name + ": " + row.need.error().message;
    const std::string storage =
        row.need->storage == 0 ? "" : amount("; file", row.need->storage, row.need->share(row.need->storage));
    return name + ": least memory " + std::to_string(row.need->total()) + " bytes, " +
           memory_line(*row.need) + storage +
           (is_exempt(row) ? "; full is exempt: --memory-mib does not bound it" : "");
}

std::string to_json(const std::vector<least_row>& rows) {
    using json = nlohmann::ordered_json;
    json all = json::array();
    for (const least_row& r : rows) {
        json& row = all.emplace_back(json{{"policy", r.policy}, {"settings", r.with}});
        if (!r.need) {
            row["error"] = r.need.error().message;
            continue;
        }
        row["least_memory_bytes"] = r.need->total();
        if (is_exempt(r)) row["exempt"] = true;
        row["raw_cache_bytes"] = r.need->raw_cache;
        row["storage_bytes"] = r.need->storage;
        for (const auto& [part, bytes] : r.need->parts) row["bytes_by_part"][part] = bytes;
        for (const auto& [part, share] : shares_of(*r.need)) row["share_by_part"][part] = share;
    }
    return all.dump(1, ' ', false, json::error_handler_t::replace);
}

} // namespace engine
