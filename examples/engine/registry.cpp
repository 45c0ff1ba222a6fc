// SPDX-License-Identifier: MIT
#include "registry.hpp"

#include "policy_list.hpp"

#include <array>

namespace engine {

// The families, and one line per preset that was compiled in, made from presets/preset_table.cmake.
#define KVTL_PRESET(name, family, about)                                                                     \
    cache_opener open_##name;                                                                                \
    cache_measurer least_of_##name;                                                                          \
    cache_wanter wants_of_##name;
#include "preset_table.inc"
#undef KVTL_PRESET

namespace {

constexpr auto families = std::to_array<std::string_view>({KVTL_FAMILIES});

struct entry {
    std::string_view name;
    std::size_t family;
    std::string_view about;
    cache_opener* open;
    cache_measurer* least;
    cache_wanter* wants;
};

constexpr std::array table = {
#define KVTL_PRESET(name, family, about)                                                                     \
    entry{#name, family, about, open_##name, least_of_##name, wants_of_##name},
#include "preset_table.inc"
#undef KVTL_PRESET
};

} // namespace

namespace {

const entry* find(std::string_view policy) {
    for (const entry& e : table)
        if (e.name == policy) return &e;
    return nullptr;
}

kvtl::error unknown(const std::string& policy) {
    std::string names;
    for (const entry& e : table) names += (names.empty() ? "" : ", ") + std::string(e.name);
    return {kvtl::errc::invalid_argument, "--policy is " + policy + "; valid: " + names};
}

} // namespace

kvtl::result<std::unique_ptr<kv_cache>> open_cache(const cache_options& options) {
    if (const entry* e = find(options.policy)) return e->open(options);
    return unknown(options.policy);
}

kvtl::result<memory_use> least_memory(const cache_options& options) {
    if (const entry* e = find(options.policy)) return e->least(options);
    return unknown(options.policy);
}

cache_wants policy_wants(std::string_view name) {
    const entry* e = find(name);
    return e != nullptr ? e->wants() : cache_wants{};
}

std::vector<std::string_view> policy_names() {
    std::vector<std::string_view> names;
    for (const entry& e : table) names.push_back(e.name);
    return names;
}

std::vector<policy_entry> listed_policies() {
    std::vector<policy_entry> all;
    for (std::size_t f = 0; f < families.size(); ++f)
        for (const entry& e : table)
            if (e.family == f) all.push_back({e.name, families[f], e.about});
    return all;
}

} // namespace engine
