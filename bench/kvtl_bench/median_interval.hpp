// How well a median is known, and the ratio of two of them, without saying anything about how the samples are distributed.
//
// Of n independent samples the number below the true median is binomial (n, 1/2), so the k-th from below and the k-th from
// above enclose it with a probability that depends on n alone. Steps of a decode are not quite independent: the interval
// says what n draws of such steps would give, not what another machine or another hour would.
//
// The interval of a ratio follows from those of its two terms (Zou and Donner, "Construction of confidence limits about
// effect measures", 2008): on the log scale the distances of the limits from the estimates add as squares.
// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>

namespace bench {

struct interval {
    double low = 0, high = 0;
};

/// 95 % or a little more, from samples in increasing order; nothing below 6 of them. Cost: O(n).
[[nodiscard]] inline std::optional<interval> median_interval95(std::span<const double> sorted) {
    const std::size_t n = sorted.size();
    // Logarithm of the probability that k of n lie below the median: 2^-n alone would be 0 for long runs.
    double log_p = -static_cast<double>(n) * std::log(2.0), below = 0;
    std::size_t k = 0;
    for (; k < n / 2; ++k) {
        below += std::exp(log_p);
        if (below > 0.025) break;
        log_p += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1));
    }
    if (k == 0) return std::nullopt;
    return interval{sorted[k - 1], sorted[n - k]};
}

/// Of b / a, all of them above 0; nothing where that does not hold.
[[nodiscard]] inline std::optional<interval> ratio_interval(double a, interval of_a, double b,
                                                            interval of_b) {
    if (!(a > 0 && of_a.low > 0 && of_a.high > 0 && b > 0 && of_b.low > 0 && of_b.high > 0))
        return std::nullopt;
    const double estimate = std::log(b / a);
    return interval{std::exp(estimate - std::hypot(std::log(b / of_b.low), std::log(of_a.high / a))),
                    std::exp(estimate + std::hypot(std::log(of_b.high / b), std::log(a / of_a.low)))};
}

} // namespace bench
