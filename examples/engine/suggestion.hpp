// What a mistyped name was meant to be, for messages of one line: the valid name at the smallest edit distance, as long as
// that is small beside the name's length.
//
//   "unknown policy 'dynvk'; " + valid_names("dynvk", names)
//   unknown policy 'dynvk'; did you mean 'dynakv'? valid: full, dynakv
//
// Cost: product of the two lengths per valid name; names are cut to 64 bytes.
// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace engine {

/// Fewest insertions, deletions, replacements and exchanges of neighbours that turn one into the other (Damerau's
/// distance, each place edited once).
[[nodiscard]] inline std::size_t edit_distance(std::string_view from, std::string_view to) {
    constexpr std::size_t most = 64;
    from = from.substr(0, most), to = to.substr(0, most);
    std::array<std::array<std::size_t, most + 1>, 3> rows{}; // two before, the one before, this one
    for (std::size_t j = 0; j <= to.size(); ++j) rows[1][j] = j;
    for (std::size_t i = 1; i <= from.size(); ++i) {
        rows[2][0] = i;
        for (std::size_t j = 1; j <= to.size(); ++j) {
            const bool same = from[i - 1] == to[j - 1];
            std::size_t least = rows[1][j - 1] + (same ? 0 : 1);
            least = std::min({least, rows[1][j] + 1, rows[2][j - 1] + 1});
            if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
                least = std::min(least, rows[0][j - 2] + 1);
            rows[2][j] = least;
        }
        std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    }
    return rows[1][to.size()];
}

/// The nearest of the names, the first of several; "" where a third of the given name or more would have to change.
template <class Names> [[nodiscard]] std::string_view nearest(std::string_view given, const Names& names) {
    std::string_view best;
    std::size_t least = std::max<std::size_t>(1, given.size() / 3) + 1;
    for (const auto& name : names) {
        const std::size_t distance = edit_distance(given, name);
        if (given.size() > 1 && distance < least) least = distance, best = name;
    }
    return best;
}

/// "did you mean 'dynakv'? valid: full, dynakv", or without the question where nothing is near. The first `most` names are
/// listed, and the others are counted: "valid: full, dynakv and 105 more".
template <class Names>
[[nodiscard]] std::string valid_names(std::string_view given, const Names& names,
                                      std::size_t most = std::numeric_limits<std::size_t>::max()) {
    std::string text;
    if (const auto meant = nearest(given, names); !meant.empty())
        text = "did you mean '" + std::string(meant) + "'? ";
    text += "valid: ";
    std::size_t listed = 0;
    for (const auto& name : names) {
        if (listed == most) return text + " and " + std::to_string(std::size(names) - most) + " more";
        text += (listed++ > 0 ? ", " : "") + std::string(name);
    }
    return text;
}

} // namespace engine
