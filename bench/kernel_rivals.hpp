// The kernels beside those of other libraries: `kvtl-kernels --rivals`.
//
// All take turns on the same rows. A line for each has its fastest round, its median round, the ratio theirs / ours of the
// fastest (above 1 ours is faster) and its largest error against double precision (in JSON null for limits of the machine).
// A library that the build did not find (cmake/kvtl-rivals.cmake) is named and left out.
//
// Names of attention end with where the rows are: L2 (256 KiB), 1K, 4K or 32K tokens, or mem, which no cache holds. With
// several threads only attention runs, a KV head a thread, and names end with /t=N: times are those until all are done.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

namespace kernels {

struct rivals_options {
    std::string file;      ///< of JSON; empty: none
    std::string filter;    ///< a regular expression over the names; empty: all
    std::size_t mib = 256; ///< of rows that no cache holds, for each thread
    std::size_t threads = 1;
    std::size_t rounds = 7; ///< of 4 ms, in 16 parts where a call takes less than one
};

/// Prints a table. Returns an exit status; 2 if the filter is no regular expression or matches nothing.
int print_rivals(const rivals_options& options);

} // namespace kernels
