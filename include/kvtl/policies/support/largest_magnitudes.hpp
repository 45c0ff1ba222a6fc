// Reduces a query to its largest components, with which SparQ and InfiniGen score.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>

namespace kvtl { inline namespace v0 { namespace detail {

/// Zeroes all but the `keep` largest magnitudes of x, ties to the lower index. scratch: as long as x.
/// Cost: O(n) on average.
inline void keep_largest_magnitudes(std::span<float> x, std::size_t keep, std::span<float> scratch) noexcept {
    if (keep >= x.size()) return;
    if (keep == 0) {
        std::fill(x.begin(), x.end(), 0.0F);
        return;
    }
    float* const size = scratch.data();
    std::transform(x.begin(), x.end(), size, [](float y) { return std::fabs(y); });
    std::nth_element(size, size + (keep - 1), size + x.size(), std::greater<>{});
    const float bar = size[keep - 1];
    auto ties =
        keep - static_cast<std::size_t>(std::count_if(size, size + keep, [bar](float y) { return y > bar; }));
    for (float& y : x) {
        const float magnitude = std::fabs(y);
        if (magnitude > bar) continue;
        if (magnitude == bar && ties != 0)
            --ties;
        else
            y = 0.0F;
    }
}

}}} // namespace kvtl::v0::detail
