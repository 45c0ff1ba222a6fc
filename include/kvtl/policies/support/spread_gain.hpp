// The weight of a unit beyond that of its mean key, computed from the spread of its keys along a query.
//
//   sigma^2 = s^2 (m2 / n) sum_d S_d q_d^2 / sum_d S_d
//
// sigma: standard deviation of the unit's logits; s: the scale of logits; m2 / n: mean squared distance of
// the unit's n keys to their mean; S: units_view::spread, the squared distances that the lane has gathered,
// by dimension. A unit has its own size of spread, and the shape of its lane. Without S the spread is taken
// as equal in all directions. That overstates sigma^2 up to twofold in a model whose queries are long where
// keys do not spread (bench/DEAD_ENDS.md).
//
// n logits of mean 0 have a log mean weight, ln mean exp(x_i), of sigma^2 / 2 if they are normal and n is
// large. The mean of n weights has a relative variance of (exp(sigma^2) - 1) / n. It reaches 1 at the bend,
// sigma^2 = ln n. From there on the few largest entries dominate the sum, which moments do not describe: the
// log mean weight grows about as sigma sqrt(ln n), and is off by a nat or more (B. Derrida, "Random-energy
// model", Phys. Rev. B 24, 2613 (1981)).
//
//   cautious_gain    for an estimate. Beyond the bend it grows with the root of sigma. An overstated unit
//                    takes mass from all others, exponentially in the error. An understated unit loses at
//                    most its own mass. So the estimate stays below the likely value when it is uncertain
//   rms_gain         for a choice: log of the root mean square weight, 1/2 ln mean exp(2 x_i). It is the
//                    likely value: a unit that may hold the largest weight of a query must be read
//
// A unit of one entry, or of equal entries, has a sigma of 0 and no gain.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/spread_gain.hpp>
#include <kvtl/slots/index.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 { namespace detail {

/// Root of sum_d S_d q_d^2 / sum_d S_d; |q| / sqrt(D) while nothing has been gathered. q: (D) query of the head
/// `units.head`. Cost: O(D + lane width).
[[nodiscard]] inline float spread_along(const float* q, const units_view& units) noexcept {
    const float all = simd::sum(units.spread.data(), units.spread.size());
    if (!(all > 0.0F)) return std::sqrt(simd::dot(q, q, units.dim) / static_cast<float>(units.dim));
    const float* of_head = units.spread.data() + std::size_t{units.head} * units.dim;
    return std::sqrt(simd::weighted_square(q, of_head, units.dim) / all);
}

/// What units [first, first + count) have beside their means goes to `out` (count). Units of a fixed size have no
/// recorded spread.
inline void get_spreads(const units_view& units, std::uint32_t first, std::uint32_t count,
                        const simd::unit_spreads& out) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
        out.log_entries[i] = static_cast<float>(units.entries(first + i));
        out.deviation[i] = units.unit == nullptr ? 0.0F : units.record(first + i).m2;
    }
    simd::to_spreads(out, count);
}

}}} // namespace kvtl::v0::detail
