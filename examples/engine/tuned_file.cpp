// SPDX-License-Identifier: MIT
#include "tuned_file.hpp"

#include "error.hpp"
#include "input_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace engine {

namespace {

using nlohmann::json;

struct entry {
    std::size_t batch, context, group_tokens, rank;
};

/// The entries of such a file, or none.
std::vector<entry> entries_of(const json& all) {
    std::vector<entry> entries;
    if (!all.is_object() || !all.contains("entries") || !all["entries"].is_array()) return {};
    for (const json& e : all["entries"]) {
        for (const char* key : {"batch", "context", "group_tokens", "rank"})
            if (!e.is_object() || !e.contains(key) || !e[key].is_number_unsigned()) return {};
        entries.push_back({e["batch"], e["context"], e["group_tokens"], e["rank"]});
    }
    return entries;
}

bool is_of(const json& shape, const kvtl::shape& s) {
    const auto is = [&](const char* key, std::uint32_t value) {
        return shape.is_object() && shape.contains(key) && shape[key] == value;
    };
    return is("layers", s.layers) && is("query_heads", s.query_heads) && is("kv_heads", s.kv_heads) &&
           is("head_dim", s.head_dim);
}

/// The smallest of all that is enough, else the largest.
std::size_t enough(const std::vector<entry>& entries, std::size_t entry::*size, std::size_t wanted) {
    std::size_t best = entries.front().*size;
    for (const entry& e : entries) {
        const std::size_t n = e.*size;
        if (best < wanted ? n > best : n >= wanted && n < best) best = n;
    }
    return best;
}

} // namespace

std::vector<setting> tuned_settings(const std::string& file, std::span<const std::string> policies,
                                    const kvtl::shape& shape, std::size_t batch, std::size_t tokens) {
    if (file.empty()) return {};
    if (std::find(policies.begin(), policies.end(), "kvswap") == policies.end())
        throw bad_input("--tuned: valid: with policy kvswap, which kvtl-tune chooses the settings of");
    const auto text = read_input(file, most_settings_bytes);
    if (!text) throw bad_input("--tuned: " + text.error().message);
    const json all = json::parse(*text, nullptr, false);
    std::vector<entry> entries = entries_of(all);
    if (entries.empty()) throw bad_input("--tuned: " + file + ": not what kvtl-tune --json writes");
    if (!is_of(all.value("shape", json()), shape))
        throw bad_input("--tuned: " + file + " is for another shape of layers and heads");
    const std::size_t of_batch = enough(entries, &entry::batch, batch);
    std::erase_if(entries, [&](const entry& e) { return e.batch != of_batch; });
    const std::size_t of_context = enough(entries, &entry::context, tokens);
    const entry& e = *std::find_if(entries.begin(), entries.end(),
                                   [&](const entry& one) { return one.context == of_context; });
    const std::string group = std::to_string(e.group_tokens);
    return {{"kvswap", "clusterer", "group_tokens", group},
            {"kvswap", "cache", "window_tokens", group}, // the rolling buffer is a group
            {"kvswap", "index", "rank", std::to_string(e.rank)}};
}

} // namespace engine
