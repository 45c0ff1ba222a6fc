// What the rows of one task say, in sentences: who keeps up with the full cache and what that costs, who does not and
// why. Every sentence follows from figures of the rows by the rule that stands beside it in the .cpp; where the examples
// are too few to tell two policies apart, it says so instead of naming a winner.
// SPDX-License-Identifier: MIT
#pragma once

#include "row.hpp"

#include <cstdio>
#include <string>
#include <vector>

namespace eval {

/// Plain text, one sentence or two each. `rows`: of one task under one condition; those with an error are passed over.
/// Empty where there is nothing to compare with: no row of `full`, or no other row.
[[nodiscard]] std::vector<std::string> conclusions(const std::vector<const row*>& rows);

/// An amount of memory against that of the full cache: "−47 %", "+3 %".
[[nodiscard]] std::string saving(double bytes, double of_full);

/// The sentences below a heading, no wider than 100 columns; nothing where there are none.
void print_sentences(std::FILE* out, const char* heading, const std::vector<std::string>& sentences);

} // namespace eval
