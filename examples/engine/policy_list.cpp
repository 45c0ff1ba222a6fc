// SPDX-License-Identifier: MIT
#include "policy_list.hpp"

#include <algorithm>

namespace engine {

std::string grouped_list(std::span<const policy_entry> policies) {
    std::size_t width = 0;
    for (const policy_entry& p : policies) width = std::max(width, p.name.size());
    std::string text;
    std::string_view family;
    for (const policy_entry& p : policies) {
        if (p.family != family) {
            text += (text.empty() ? "# " : "\n# ") + std::string(p.family) + '\n';
            family = p.family;
        }
        text +=
            std::string(p.name) + std::string(width - p.name.size() + 2, ' ') + std::string(p.about) + '\n';
    }
    return text;
}

} // namespace engine
