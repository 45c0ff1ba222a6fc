// SPDX-License-Identifier: MIT
#include "registry.hpp"

#include <array>

namespace engine {

// One line per preset that was compiled in, made from presets/preset_table.cmake.
#define KVTL_PRESET(name)                                                                                    \
    cache_opener open_##name;                                                                                \
    cache_wanter wants_of_##name;
#include "preset_table.inc"
#undef KVTL_PRESET

namespace {

struct entry {
    std::string_view name;
    cache_opener* open;
    cache_wanter* wants;
};

constexpr std::array table = {
#define KVTL_PRESET(name) entry{#name, open_##name, wants_of_##name},
#include "preset_table.inc"
#undef KVTL_PRESET
};

} // namespace

kvtl::result<std::unique_ptr<kv_cache>> open_cache(const cache_options& options) {
    std::string names;
    for (const entry& e : table) {
        if (e.name == options.policy) return e.open(options);
        names += (names.empty() ? "" : ", ") + std::string(e.name);
    }
    return kvtl::error(kvtl::errc::invalid_argument, "--policy is " + options.policy + "; valid: " + names);
}

cache_wants policy_wants(std::string_view name) {
    for (const entry& e : table)
        if (e.name == name) return e.wants();
    return {};
}

std::vector<std::string_view> policy_names() {
    std::vector<std::string_view> names;
    for (const entry& e : table) names.push_back(e.name);
    return names;
}

} // namespace engine
