// SPDX-License-Identifier: MIT
#include "memory_report.hpp"

#include "error.hpp"
#include "program.hpp"

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

void print_least(const std::vector<least_row>& rows, const std::string& json_file) {
    using json = nlohmann::ordered_json;
    json all = json::array();
    bool any = false;
    for (const least_row& r : rows) {
        json& row = all.emplace_back(json{{"policy", r.policy}, {"settings", r.with}});
        const std::string name = r.with.empty() ? r.policy : r.policy + ", " + r.with;
        if (!r.need) {
            row["error"] = r.need.error().message;
            if (json_file != "-") std::printf("%s: %s\n", name.c_str(), r.need.error().message.c_str());
            continue;
        }
        any = true;
        const memory_use& m = *r.need;
        row["least_memory_bytes"] = m.total();
        row["raw_cache_bytes"] = m.raw_cache;
        json& parts = row["bytes_by_part"] = json::object();
        for (const auto& [part, bytes] : m.parts) parts[part] = bytes;
        json& shares = row["share_by_part"] = json::object();
        for (const auto& [part, share] : shares_of(m)) shares[part] = share;
        if (json_file != "-")
            std::printf("%s: least memory %llu bytes, %s\n", name.c_str(),
                        static_cast<unsigned long long>(m.total()), memory_line(m).c_str());
    }
    if (!any) throw bad_input(rows.empty() ? "no policy" : rows.front().need.error().message);
    if (!json_file.empty()) write_output(json_file, all.dump(1, ' ', false, json::error_handler_t::replace));
}

} // namespace engine
