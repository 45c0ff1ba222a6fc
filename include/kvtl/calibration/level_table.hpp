// Levels of non-uniform codes: how a calibration file holds them, and the outliers that fit and codec leave out.
//
// What:   28 numbers: the levels of codes of 2 bits (4), of 3 bits (8) and of 4 bits (16), each ascending within [-1, 1].
//         A number of a vector is middle + half range * level. Outliers of the vector have no code.
// Cost:   pick_outliers O(n) on average, and O(count log count); range_without_outliers two passes more.
// Source: "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization" (Hooper et al. 2024, sections
//         3.3 and 3.4): the datatype nuq, and dense-and-sparse quantisation.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>

namespace kvtl { inline namespace v0 {

struct level_table {
    static constexpr std::uint32_t least_bits = 2, most_bits = 4;
    static constexpr std::uint32_t levels = 28; ///< of all widths

    [[nodiscard]] static constexpr std::uint32_t count(std::uint32_t bits) noexcept { return 1U << bits; }
    /// Where the levels of a width begin.
    [[nodiscard]] static constexpr std::uint32_t first(std::uint32_t bits) noexcept {
        return count(bits) - count(least_bits);
    }
    /// Numbers that a share of n comes to.
    [[nodiscard]] static constexpr std::uint32_t outliers(float share, std::uint32_t n) noexcept {
        return std::min(n, static_cast<std::uint32_t>(share * static_cast<float>(n) + 0.5F));
    }
};

/// place (n): begins with the places of the `count` largest of distance (n), ascending; ties to the lower place.
template <class Place>
inline void pick_outliers(const float* distance, std::size_t n, std::size_t count, Place* place) noexcept {
    std::iota(place, place + n, Place{0});
    if (count < n)
        std::nth_element(place, place + count, place + n, [distance](Place a, Place b) {
            return distance[a] != distance[b] ? distance[a] > distance[b] : a < b;
        });
    std::sort(place, place + count);
}

/// Middle and half range of a row's numbers that are no outliers.
struct value_range {
    float middle = 0, half = 0;
};
/// x (n): a value. Its outliers are the `count` numbers furthest from the mean; their places go to the first of place (n).
/// scratch: (n).
template <class Place>
[[nodiscard]] inline value_range range_without_outliers(const float* x, std::size_t n, std::size_t count,
                                                        float* scratch, Place* place) noexcept {
    const double mean =
        std::accumulate(x, x + n, 0.0) / static_cast<double>(n); // of floats as large as they get
    for (std::size_t d = 0; d < n; ++d)
        scratch[d] = static_cast<float>(std::fabs(static_cast<double>(x[d]) - mean));
    pick_outliers(scratch, n, count, place);
    float least = std::numeric_limits<float>::max(), most = -least;
    for (std::size_t d = 0, next = 0; d < n; ++d)
        if (next < count && place[next] == d)
            ++next;
        else
            least = std::min(least, x[d]), most = std::max(most, x[d]);
    if (least > most) return {}; // outliers only
    return {0.5F * least + 0.5F * most, 0.5F * most - 0.5F * least};
}

}} // namespace kvtl::v0
