// SPDX-License-Identifier: MIT
#include "registry.hpp"

#include <array>

namespace engine {

// One line per preset that was compiled in, made from presets/preset_table.cmake.
#define KVTL_PRESET(name)                                                                                    \
    cache_opener open_##name;                                                                                \
    cache_measurer least_of_##name;                                                                          \
    cache_wanter wants_of_##name;
#include "preset_table.inc"
#undef KVTL_PRESET

namespace {

struct entry {
    std::string_view name;
    cache_opener* open;
    cache_measurer* least;
    cache_wanter* wants;
};

constexpr std::array table = {
#define KVTL_PRESET(name) entry{#name, open_##name, least_of_##name, wants_of_##name},
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

} // namespace engine
