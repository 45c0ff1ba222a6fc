// What --list-policies prints: names alone, one per line, for whoever reads them by program; on a terminal in families, with a
// line about each.
// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

struct policy_entry {
    std::string_view name;
    std::string_view family; ///< its heading: "eviction: ..."
    std::string_view about;  ///< a line
};

/// Those of the registry, family by family.
[[nodiscard]] std::vector<policy_entry> listed_policies();

/// Names at the beginnings of lines, each family below its heading.
[[nodiscard]] std::string grouped_list(std::span<const policy_entry> policies);

} // namespace engine
