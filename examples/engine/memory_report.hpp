// What the parts of a cache take, as bytes and as shares of the raw cache (keys and values of all its tokens as f16), in the
// words and JSON keys of every program.
// SPDX-License-Identifier: MIT
#pragma once

#include "kv_cache.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace engine {

/// Share of the raw cache of every part, and "total"; 1 is all of it. Nothing where there is no raw cache.
[[nodiscard]] std::vector<std::pair<std::string, double>> shares_of(const memory_use& m);

/// "total 2.10 MiB 35.0 % of the raw cache of 6.00 MiB: index 1.00 MiB 16.7 %, ...": parts that take nothing are left
/// out. Without a line end.
[[nodiscard]] std::string memory_line(const memory_use& m);

/// What --least-memory prints of a policy, on standard output: the smallest memory bound that it can be opened with.
/// `with` says the settings: "dynakv, attend-tokens 256".
struct least_row {
    std::string policy;
    std::string with; ///< settings that tell it from others of its policy; or empty
    kvtl::result<memory_use> need;
};

/// A line per row; with a file also an array of objects there ("-": only that, on standard output). Throws bad_input when
/// there is no row that has a least memory, run_failure when the file cannot be written.
void print_least(const std::vector<least_row>& rows, const std::string& json_file);

} // namespace engine
