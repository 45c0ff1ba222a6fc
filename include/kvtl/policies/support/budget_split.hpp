// Arithmetic for late budgets: exact proportional division, and the n-th best of scattered scores.
//
// What:   split_exactly divides a whole number in proportion to weights, under caps, with an exact sum. The
//         amount that a cap rejects goes to the others in proportion. rank_threshold finds the limit of the n
//         best of many scores by counting the bytes of their bits; the scores are not moved.
// Cost:   split: O(parts) per cap that binds. Threshold: four passes over all scores, 2 KiB of stack.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtl { inline namespace v0 {

/// out[i] <= cap[i], in proportion to weight[i] where no cap binds, with sum(out) = min(total, sum(cap)).
/// Weights that are negative or no number count as 0, infinite ones as very large; if all that have room
/// count 0, they share equally. `out` may be `cap`. Uses weight as scratch.
inline void split_exactly(std::span<double> weight, std::span<const std::uint32_t> cap, std::uint64_t total,
                          std::span<std::uint32_t> out) noexcept {
    constexpr double capped = -1.0; // marks a part whose cap binds
    const std::size_t n = weight.size();
    std::uint64_t room = 0;
    for (std::size_t i = 0; i < n; ++i) {
        weight[i] = weight[i] > 0.0 ? std::min(weight[i], 1e200) : 0.0; // sums stay finite
        room += cap[i];
    }
    std::uint64_t left = std::min(total, room);
    double sum = 0;
    for (bool again = true; again;) {
        again = false;
        sum = 0;
        std::size_t parts = 0;
        for (const double w : weight)
            if (w != capped) sum += w, ++parts;
        if (parts > 0 && !(sum > 0.0)) {
            for (double& w : weight)
                if (w != capped) w = 1.0;
            sum = static_cast<double>(parts);
        }
        const double each = static_cast<double>(left) / sum;
        for (std::size_t i = 0; i < n; ++i)
            if (weight[i] != capped && weight[i] * each >= static_cast<double>(cap[i])) {
                out[i] = cap[i];
                left -= std::min<std::uint64_t>(left, cap[i]);
                weight[i] = capped;
                again = true;
            }
    }
    // Shares are rounded where their running sum passes whole numbers: each is off by less than one.
    double running = 0;
    std::uint64_t given = 0;
    std::size_t last = n;
    for (std::size_t i = 0; i < n; ++i) {
        if (weight[i] == capped) continue;
        running += weight[i] / sum * static_cast<double>(left);
        const auto upto = std::min(left, static_cast<std::uint64_t>(running + 1e-6));
        const std::uint32_t limit = cap[i];
        out[i] = static_cast<std::uint32_t>(std::min<std::uint64_t>(upto - given, limit));
        given += out[i];
        last = i;
    }
    if (last < n) out[last] += static_cast<std::uint32_t>(left - given); // what 1e-6 did not mend
}

/// Bits that order like the score: a greater score has greater bits. NaN is below everything.
[[nodiscard]] inline std::uint32_t score_bits(float score) noexcept {
    if (std::isnan(score)) return 0;
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

/// The n best scores are those above `bits` and, in the order of the visit, the first `ties` that equal it.
struct score_threshold {
    std::uint32_t bits = 0;
    std::uint64_t ties = 0;

    /// Whether a score is among the best. Ask in the order of the visit.
    [[nodiscard]] bool passes(float score) noexcept {
        const std::uint32_t b = score_bits(score);
        if (b != bits) return b > bits;
        if (ties == 0) return false;
        --ties;
        return true;
    }
};

/// visit(f) calls f(score) for every score. If there are no more than n, all pass.
template <class Visit> [[nodiscard]] score_threshold rank_threshold(std::uint64_t n, Visit&& visit) noexcept {
    score_threshold t{0, n};
    std::uint32_t known = 0; // the upper bits that are decided
    for (int shift = 24; shift >= 0; shift -= 8) {
        std::uint64_t count[256] = {};
        visit([&](float score) {
            const std::uint32_t b = score_bits(score);
            if ((b & known) == t.bits) ++count[(b >> shift) & 0xFFU];
        });
        std::uint32_t digit = 255;
        while (digit > 0 && count[digit] < t.ties) t.ties -= count[digit--];
        t.bits |= digit << shift;
        known |= std::uint32_t{0xFF} << shift;
    }
    return t;
}

}} // namespace kvtl::v0
