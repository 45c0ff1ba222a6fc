// What every layout is told when the cache is opened, and what it is told about a prompt's units.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/unit.hpp>

#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

struct layout_limits {
    std::uint32_t file_pages = 0; ///< pages a shard may use at all: a prompt's units always fit
    std::uint32_t grow_pages =
        0; ///< once this many are used, no unit is added during decode (2.5 x the raw cache)
    std::uint32_t unit_pages = 1; ///< pages of the largest unit
};

/// The units of one prompt in the order in which a layout shall place them. `strength[i]` says how often
/// units order[i] and order[i+1] were retrieved together (0: a chain ends at i).
struct arrangement {
    std::span<const std::uint32_t> order;
    std::span<const std::uint32_t> strength;
    std::span<unit_record> unit; ///< in: entries; out: where
    std::uint32_t rows_per_page = 1;
    std::span<const std::uint32_t>
        page_count{}; ///< pages of each unit, where entries have sizes of their own

    [[nodiscard]] std::uint32_t pages(std::uint32_t u) const noexcept {
        return page_count.empty() ? (unit[u].entries + rows_per_page - 1) / rows_per_page : page_count[u];
    }
};

}} // namespace kvtl::v0
