// Which size of an index kvtl-bench measures: of the largest that fits and the next smaller ones the fastest, if it attends
// as much.
//
// What:   an index as large as the memory allows leaves the fewest frames for what is read, so that a smaller one may make
//         shorter steps. Each size is tried for a few steps on the same tokens. One that is taken instead of the largest is
//         faster by more than 5 % and attends a share of full attention's mass that is no more than .01 less. Sizes are
//         tried one after the other, and a policy that was given settings keeps its size.
// Errors: none; where nothing was tried the choice is the largest.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bench {

struct tried_size {
    double step_ms = 0;         ///< median
    std::optional<double> mass; ///< share of full attention's that was attended; empty: nothing was sampled
    std::vector<std::pair<std::string, std::string>> settings;
};

struct size_choice {
    unsigned turns = 0;                     ///< of the size knob beyond the largest index that fits
    nlohmann::ordered_json tried = nullptr; ///< what was tried, for the row; null: nothing
};

/// `tried[i]` is the size `i` turns beyond the largest.
[[nodiscard]] size_choice choice_of(const std::vector<tried_size>& tried);

} // namespace bench
