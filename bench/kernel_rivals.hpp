// The kernels beside those of other libraries: `kvtl-kernels --rivals`.
//
// Each pair takes turns on the same rows; the fastest round of each counts, and the ratio is theirs / ours: above 1 ours
// is faster. Attention of all libraries runs in turn, a line for each, with the largest error against double precision. A
// library that the build did not find (cmake/kvtl-rivals.cmake) is named and left out.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

namespace kernels {

struct rivals_options {
    std::string file;      ///< of JSON, for the rows of attention; empty: none
    std::string filter;    ///< a regular expression over the names; empty: all
    std::size_t mib = 256; ///< of rows that no cache holds
    std::size_t rounds = 7;
};

/// Prints a table. Returns an exit status; 2 if the filter is no regular expression or matches nothing.
int print_rivals(const rivals_options& options);

} // namespace kernels
