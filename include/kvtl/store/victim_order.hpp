// Hints of an engine about stored prefixes, and who leaves first when there is no room.
//
// Order:  prefixes without a valid pin first, by the largest number of steps to execution, then the lowest priority, then the
//         least recent use. Pinned ones leave only when no other is left, and the one whose deadline is farthest first.
// Source: steps to execution: KVFlow (abstract); a pin with a deadline: time to live in Continuum (abstract).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <cstdint>
#include <limits>

namespace kvtl { inline namespace v0 {

/// What an engine says of a stored prefix. By default nothing: then the least recently used one leaves.
struct prefix_hints {
    static constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();

    std::uint64_t steps = unknown; ///< until it is wanted again, in any unit that all prefixes share
    std::int32_t priority = 0;     ///< lower ones leave first
    std::uint64_t keep_until = 0;  ///< a pin, in seconds of the store's clock; 0: none
};

/// What is compared.
struct victim_rank {
    prefix_hints hints{};
    std::uint64_t used = 0; ///< grows with every use
};

/// Whether a leaves before b. A strict order of ranks with different `used`.
/// \param now the store's clock, in seconds: a pin holds while keep_until > now
[[nodiscard]] constexpr bool leaves_before(const victim_rank& a, const victim_rank& b,
                                           std::uint64_t now) noexcept {
    const bool a_pinned = a.hints.keep_until > now, b_pinned = b.hints.keep_until > now;
    if (a_pinned != b_pinned) return b_pinned;
    if (a_pinned && a.hints.keep_until != b.hints.keep_until) return a.hints.keep_until > b.hints.keep_until;
    if (a.hints.steps != b.hints.steps) return a.hints.steps > b.hints.steps;
    if (a.hints.priority != b.hints.priority) return a.hints.priority < b.hints.priority;
    return a.used < b.used;
}

}} // namespace kvtl::v0
