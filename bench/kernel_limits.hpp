// How near the kernels come to what the machine can do: `kvtl-kernels --limits`.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

namespace kernels {

struct limits_options {
    std::string filter;     ///< a regular expression over the names; empty: all
    std::size_t mib = 1024; ///< of rows that no cache holds
    std::size_t threads =
        1; ///< that share those rows and begin with each round, which is timed; with more than one nothing
           ///< else is measured. One of them touches the rows first.
    std::size_t rounds = 7; ///< a kernel and its limit take turns so often; the fastest of each counts
};

/// Prints a table: per kernel, element and head size what it reached, what a loop that does nothing else reached in the
/// same rounds, and the share. Returns an exit status; 2 if the filter is no regular expression or matches nothing.
int print_limits(const limits_options& options);

} // namespace kernels
