// What a remainder policy is given: the units that were not attended, for one KV head and step.
//
// A policy with `static constexpr bool estimates = true` has a state with
//
//   std::size_t scratch_floats(const summary_shape&, std::uint32_t max_units) const
//   void add(const remainder_input&, const partial& into) const noexcept
//
// add() merges its estimate of what the other units would have contributed into the softmax state. An
// estimated unit of n entries counts as n (a log-count bias), so that equal keys estimated equal keys read.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/unit.hpp>

#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

struct remainder_input {
    const float* q = nullptr; ///< (G, D) queries of the KV head
    std::uint32_t group = 1;  ///< G
    float scale = 1;          ///< of logits: 1 / sqrt(D)
    units_view units;         ///< means and summaries of this head: `mean` points at its first element
    std::span<const std::uint64_t> attended; ///< (U) bit of query g of the lane set: attended exactly
    std::span<float> scratch;                ///< scratch_floats()
    std::span<float> attend;                 ///< scratch of simd::attend_rows

    /// True when query g of this head did not attend unit u.
    [[nodiscard]] bool missing(std::uint32_t u, std::uint32_t g) const noexcept {
        const std::uint32_t bit = units.head * group + g;
        return bit >= 64 ? attended[u] == 0 : (attended[u] >> bit & 1) == 0;
    }
};

}} // namespace kvtl::v0
