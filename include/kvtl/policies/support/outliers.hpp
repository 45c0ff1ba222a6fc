// Finds the units that their mean key represents least (ShadowKV's outlier chunks).
//
//   agreement(unit) = the smallest cosine of one of its keys and their mean
//
// A list of the units that agree least lies in a lane's memory. Its first element is the number of units that
// follow, the worst first. Cost: agreement O(entries D); enlist O(list).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/dot.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvtl { inline namespace v0 { namespace detail {

struct outlier {
    float agreement = 0.0F;
    std::uint32_t unit = 0; ///< of the first element: how many follow
};

/// keys: n rows of D numbers, `stride` apart; sum: theirs (D), as its length does not matter.
[[nodiscard]] inline float agreement(const float* keys, std::size_t n, std::size_t stride, const float* sum,
                                     std::size_t dim) noexcept {
    float least = std::numeric_limits<float>::infinity();
    for (std::size_t i = 0; i < n; ++i) {
        const float* k = keys + i * stride;
        const float lengths = std::sqrt(simd::dot(k, k, dim) * simd::dot(sum, sum, dim));
        least = std::min(least, lengths > 0 ? simd::dot(k, sum, dim) / lengths : 0.0F);
    }
    return least;
}

[[nodiscard]] inline std::span<const outlier> listed(std::span<const outlier> list) noexcept {
    return list.subspan(1, list[0].unit);
}

/// Puts a unit where it belongs, or nowhere. A unit is in the list once; of equal ones the earlier stays ahead.
inline void enlist(std::span<outlier> list, const outlier& o) noexcept {
    outlier* const first = list.data() + 1;
    outlier* const last = list.data() + list.size();
    outlier* end =
        std::remove_if(first, first + list[0].unit, [&](const outlier& x) { return x.unit == o.unit; });
    outlier* const at = std::upper_bound(
        first, end, o, [](const outlier& a, const outlier& b) { return a.agreement < b.agreement; });
    if (at != last) {
        if (end != last) ++end;
        std::move_backward(at, end - 1, end);
        *at = o;
    }
    list[0].unit = static_cast<std::uint32_t>(end - first);
}

}}} // namespace kvtl::v0::detail
