// The softmax mass of units, estimated from their scores: for selectors that go by shares of attention.
//
//   mass(u) = entries(u) exp(logit_scale * score(u) - largest)
//
// Cost:   total_mass() takes an exponential per unit.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/axpy.hpp>
#include <kvtl/simd/softmax.hpp>
#include <kvtl/slots/selector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace kvtl { inline namespace v0 { namespace detail {

/// The mass of all units of a lane, in parts of exp(largest).
struct lane_mass {
    float largest = 0; ///< the highest logit of a unit
    float sum = 0;     ///< over units: entries * exp(logit - largest)
    float entries = 0;
};

/// `scale`: a score times this is a logit. At least one unit.
[[nodiscard]] inline lane_mass total_mass(const choice_input& in, float scale) noexcept {
    lane_mass all{.largest = simd::max_of(in.score.data(), in.score.size()) * scale};
    float weight[64];
    for (std::size_t first = 0; first < in.score.size(); first += std::size(weight)) {
        const std::size_t n = std::min(std::size(weight), in.score.size() - first);
        std::copy_n(&in.score[first], n, weight);
        simd::scale(scale, weight, n);
        static_cast<void>(simd::exp_shifted_sum(weight, n, all.largest));
        for (std::size_t i = 0; i < n; ++i) {
            const auto entries = static_cast<float>(in.entries(static_cast<std::uint32_t>(first + i)));
            all.sum += weight[i] * entries;
            all.entries += entries;
        }
    }
    return all;
}

}}} // namespace kvtl::v0::detail
