// The k best of n scores, best first or by their index.
//
// What:   scores become 64-bit keys that sort like (score descending, index ascending). Maxima of groups set a bar
//         that k scores reach. One sweep keeps every score that still can be among the best in a buffer; when
//         the buffer is full, a selection cuts it back to k and raises the bar. Most scores are only ever
//         compared, a register at a time.
// Shapes: score (n), out (k).
// Cost:   n / lanes comparisons twice, once for the first bar, O(k log(n / k)) candidates; best first one sort of k keys,
//         by their index a third sweep instead.
// Limits: NaN ranks below -inf; +0 and -0 tie. n < 2^32.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/compiled.hpp>
#include <kvtl/simd/arch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace kvtl { inline namespace v0 { namespace simd {

/// How many keys of scratch top_k and top_k_by_index need for these n and k.
[[nodiscard]] constexpr std::size_t top_k_scratch(std::size_t n, std::size_t k) noexcept {
    return std::min(n, k + std::max<std::size_t>(k, 512));
}

/// A key per score: greater means better, and among equal scores the lower index is better.
template <class Arch> [[nodiscard]] inline std::uint64_t top_k_key(float score, std::size_t index) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F); // -0 becomes +0
    const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
    const std::uint64_t upper = std::isnan(score) ? 0 : ordered;
    return (upper << 32) | (0xFFFFFFFFU - static_cast<std::uint32_t>(index));
}

/// The index that a key was made of.
[[nodiscard]] constexpr std::uint32_t top_k_index(std::uint64_t key) noexcept {
    return 0xFFFFFFFFU - static_cast<std::uint32_t>(key);
}

/// The score that a key was made of; NaN of every kind is one.
[[nodiscard]] constexpr float top_k_score(std::uint64_t key) noexcept {
    const auto ordered = static_cast<std::uint32_t>(key >> 32);
    if (ordered == 0) return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>((ordered >> 31) != 0 ? ordered & 0x7FFFFFFFU : ~ordered);
}

/// Sorts keys best first. One type per Arch keeps std::sort's code apart between translation units.
template <class Arch> struct better_key {
    bool operator()(std::uint64_t a, std::uint64_t b) const noexcept { return a > b; }
};

/// Sorts keys by the index that they were made of.
template <class Arch> struct lower_index {
    bool operator()(std::uint64_t a, std::uint64_t b) const noexcept {
        return top_k_index(a) < top_k_index(b);
    }
};

/// Moves the k best of n distinct keys to the front, the k-th of them to keys[k - 1]. Quickselect with a
/// partition that never mispredicts, several times as fast as std::nth_element, which finishes (and bounds
/// the worst case).
template <class Arch> inline void select_best(std::uint64_t* keys, std::size_t n, std::size_t k) noexcept {
    std::size_t first = 0, last = n; // the k-th best is in [first, last)
    for (int round = 0; round < 32 && last - first > 24; ++round) {
        const std::size_t quarter = (last - first) / 4; // not the ends: a partition leaves its pivot there
        const std::uint64_t a = keys[first + quarter], b = keys[first + 2 * quarter],
                            c = keys[last - quarter];
        const std::uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        std::size_t split = first; // better keys go to [first, split)
        for (std::size_t i = first; i < last; ++i) {
            const std::uint64_t key = keys[i];
            keys[i] = keys[split];
            keys[split] = key;
            split += static_cast<std::size_t>(key > pivot);
        }
        (split >= k ? last : first) = split;
    }
    std::nth_element(keys + first, keys + (k - 1), keys + last, better_key<Arch>{});
}

/// Writes the indices of n distinct keys, best first. Of few keys each one's place is counted: n^2 comparisons, but none
/// that a processor may guess wrong.
template <class Arch>
inline void put_in_order(std::uint64_t* keys, std::size_t n, std::uint32_t* out) noexcept {
    constexpr std::size_t together = 16, few = 96;
    if (n > few) {
        std::sort(keys, keys + n, better_key<Arch>{});
        for (std::size_t i = 0; i < n; ++i) out[i] = top_k_index(keys[i]);
        return;
    }
    for (std::size_t first = 0; first < n; first += together) {
        const std::size_t some = std::min(together, n - first);
        std::uint64_t mine[together] = {}, better[together] = {};
        std::copy_n(keys + first, some, mine);
        for (std::size_t j = 0; j < n; ++j)
            for (std::size_t i = 0; i < together; ++i) better[i] += keys[j] > mine[i] ? 1U : 0U;
        for (std::size_t i = 0; i < some; ++i) out[better[i]] = top_k_index(mine[i]);
    }
}

/// Writes the indices of the k best of n > k scores, keys[0, k) with the k-th at the end, in ascending order.
template <class Arch>
inline void put_by_index(const float* score, std::size_t n, std::uint64_t* keys, std::size_t k,
                         std::uint32_t* out) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const float bar = top_k_score(keys[k - 1]);
    if (std::isnan(bar)) { // all that are numbers, and some that are not: rare
        std::sort(keys, keys + k, lower_index<Arch>{});
        for (std::size_t i = 0; i < k; ++i) out[i] = top_k_index(keys[i]);
        return;
    }
    const std::size_t last = top_k_index(keys[k - 1]); // of those that reach the bar and no more
    std::size_t found = 0;
    const auto offer = [&](std::size_t from, std::size_t to) { // written always, kept if it is one: no branch
        for (std::size_t j = from; j < to; ++j) {
            keys[found] = j;
            found += static_cast<std::size_t>((score[j] > bar) | ((score[j] == bar) & (j <= last)));
        }
    };
    std::size_t i = 0;
    for (const F bars(bar); i + lane_count <= n; i += lane_count)
        if (xsimd::any(load<Arch>(score + i) >= bars)) offer(i, i + lane_count);
    offer(i, n);
    for (std::size_t j = 0; j < k; ++j) out[j] = static_cast<std::uint32_t>(keys[j]);
}

/// A bar that at least k of n scores reach, and not many more where these lie in no order: the k-th best of the maxima of
/// groups, of which there are at least 2 k. -inf: there are too few scores for that, or too few that are greater.
template <class Arch>
[[nodiscard]] inline float first_bar(const float* score, std::size_t n, std::size_t k,
                                     std::span<std::uint64_t> scratch) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    const float lowest = -std::numeric_limits<float>::infinity();
    const std::size_t registers = n / lane_count, groups = (2 * k + lane_count - 1) / lane_count;
    const std::size_t together = registers / groups; // registers whose maximum is taken, lane by lane
    if (together < 2 || groups * lane_count > top_k_scratch(n, k)) return lowest;
    std::uint64_t* const keys = scratch.data();
    for (std::size_t g = 0; g < groups; ++g) {
        F most(lowest);
        for (std::size_t r = g * together; r < (g + 1) * together; ++r)
            most = xsimd::max(load<Arch>(score + r * lane_count), most);
        float each[lane_count];
        store<Arch>(each, most);
        for (std::size_t j = 0; j < lane_count; ++j)
            keys[g * lane_count + j] = top_k_key<Arch>(each[j], g * lane_count + j);
    }
    select_best<Arch>(keys, groups * lane_count, k);
    return top_k_score(keys[k - 1]);
}

/// Leaves the keys of the k best of n scores in front of `scratch`, the k-th at their end. 1 <= k <= n.
template <class Arch>
inline void select_top_k(const float* score, std::size_t n, std::size_t k,
                         std::span<std::uint64_t> scratch) noexcept {
    using F = floats<Arch>;
    constexpr std::size_t lane_count = floats_per_register<Arch>;
    constexpr std::size_t stride = 4 * lane_count;
    const float lowest = -std::numeric_limits<float>::infinity();
    std::uint64_t* const keys = scratch.data();
    const std::size_t capacity = top_k_scratch(n, k);
    std::size_t i = 0, filled = 0;
    float bar = first_bar<Arch>(score, n, k, scratch);
    if (!(bar > lowest)) { // NaN are below it: whatever comes first
        for (; i < capacity; ++i) keys[i] = top_k_key<Arch>(score[i], i);
        filled = capacity;
    }
    for (;;) {
        if (filled > k || i == n) {
            select_best<Arch>(keys, filled, k);
            filled = k;
            if (i == n) break;
        }
        if (filled ==
            k) { // The k-th best so far sets the bar. What comes later loses ties, so only a greater score matters.
            const float reached = top_k_score(keys[k - 1]);
            bar = std::isnan(reached) ? lowest : std::nextafter(reached, -lowest);
        }
        const F bars(bar);
        const auto offer = [&](std::size_t from,
                               std::size_t to) { // written always, kept if it passes: no branch
            for (std::size_t j = from; j < to; ++j) {
                keys[filled] = j;
                filled += static_cast<std::size_t>(score[j] >= bar);
            }
        };
        const std::size_t before = filled;
        for (; i + stride <= n && filled + stride <= capacity; i += stride) {
            const auto passes = [&](std::size_t j) { return load<Arch>(score + i + j * lane_count) >= bars; };
            if (!xsimd::any((passes(0) | passes(1)) | (passes(2) | passes(3)))) continue;
            for (std::size_t j = 0; j < 4; ++j)
                if (xsimd::any(passes(j))) offer(i + j * lane_count, i + (j + 1) * lane_count);
        }
        if (i + stride > n && filled + (n - i) <= capacity) {
            offer(i, n);
            i = n;
        }
        for (std::size_t j = before; j < filled; ++j) keys[j] = top_k_key<Arch>(score[keys[j]], keys[j]);
    }
}

/// Writes the indices of the min(n, k) best scores to `out`, best first, and returns how many these are.
template <class Arch = default_arch>
KVTL_INLINE_KERNEL std::size_t top_k(const float* score, std::size_t n, std::size_t k, std::uint32_t* out,
                                     std::span<std::uint64_t> scratch) noexcept {
    k = std::min(n, k);
    if (k == 0) return 0;
    select_top_k<Arch>(score, n, k, scratch);
    put_in_order<Arch>(scratch.data(), k, out);
    return k;
}

/// The same indices in ascending order, for whom it is enough to know which these are; nothing is sorted, unless fewer than k
/// scores are numbers.
template <class Arch = default_arch>
KVTL_INLINE_KERNEL std::size_t top_k_by_index(const float* score, std::size_t n, std::size_t k,
                                              std::uint32_t* out, std::span<std::uint64_t> scratch) noexcept {
    k = std::min(n, k);
    if (k == n) {
        std::iota(out, out + n, 0U);
        return n;
    }
    if (k == 0) return 0;
    select_top_k<Arch>(score, n, k, scratch);
    put_by_index<Arch>(score, n, scratch.data(), k, out);
    return k;
}

#ifdef KVTL_INSTANCE
KVTL_INSTANCE std::size_t top_k<default_arch>(const float*, std::size_t, std::size_t, std::uint32_t*,
                                              std::span<std::uint64_t>) noexcept;
KVTL_INSTANCE std::size_t top_k_by_index<default_arch>(const float*, std::size_t, std::size_t, std::uint32_t*,
                                                       std::span<std::uint64_t>) noexcept;
#endif

}}} // namespace kvtl::v0::simd
