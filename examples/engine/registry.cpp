// SPDX-License-Identifier: MIT
#include "registry.hpp"

#include <array>

namespace engine {

namespace {

struct entry {
    std::string_view name;
    cache_opener* open;
};

constexpr std::array table = {
    entry{"full", open_full},
    entry{"dynakv", open_dynakv},
    entry{"dynakv_static", open_dynakv_static},
    entry{"dynakv_sequence_order", open_dynakv_sequence_order},
    entry{"dynakv_unit_contiguous", open_dynakv_unit_contiguous},
    entry{"dynakv_lru", open_dynakv_lru},
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

std::vector<std::string_view> policy_names() {
    std::vector<std::string_view> names;
    for (const entry& e : table) names.push_back(e.name);
    return names;
}

} // namespace engine
