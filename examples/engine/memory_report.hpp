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

/// What --least-memory says of a policy: the smallest memory bound that it can be opened with.
struct least_row {
    std::string policy;
    std::string with; ///< settings that tell it from others of its policy: "256 attended"; or empty
    kvtl::result<memory_use> need;
};

/// "dynakv, 256 attended: least memory 2420736 bytes, total ...", or why there is none. Without a line end.
[[nodiscard]] std::string least_line(const least_row& row);

/// An array with an object per row.
[[nodiscard]] std::string to_json(const std::vector<least_row>& rows);

} // namespace engine
