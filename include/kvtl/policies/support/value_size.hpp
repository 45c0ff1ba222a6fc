// The size of a value for scores that weigh attention by it.
//
// What:   |W_o v|: the length of v after its head's part of the output projection, root mean square over the query
//         heads that share it, from section value_norms of the calibration file. Without the section, sum |v|.
// Cost:   D^2 multiply-adds.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/element.hpp>
#include <kvtl/simd/dot.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvtl { inline namespace v0 {

/// v (D) of a KV head of a layer.
template <element E>
[[nodiscard]] float value_size_of(const calibration_view& file, std::uint32_t layer, std::uint32_t head,
                                  const E* v, std::size_t dim) noexcept {
    float size = 0;
    if (!file.has(calibration_kind::value_norms)) {
        for (std::size_t d = 0; d < dim; ++d) size += std::fabs(to_float(v[d]));
        return size;
    }
    const rows_view<float> factor = file.basis(calibration_kind::value_norms, layer, head);
    for (std::size_t i = 0; i < factor.count; ++i) {
        const float x = simd::dot(factor.row(i), v, dim);
        size += x * x;
    }
    return std::sqrt(size);
}

}} // namespace kvtl::v0
