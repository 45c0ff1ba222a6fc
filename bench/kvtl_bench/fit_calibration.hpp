// The one place where the bench gets bases for policies that need some fitted offline.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>

#include "shapes.hpp"
#include "workload.hpp"

#include <cstdint>
#include <string>

namespace bench {

/// Fits what policies of this shape may need to the prompt of a sample, which is another text of the same
/// model, and writes it to `path` for cache_options::calibration. Called outside all timers. turned: not null for
/// (H*D, H*D) bases of keys before RoPE, which they are turned back to, and of values as well, which only codecs read. `rank`: joint directions
/// at least; others than the usual number where a setting wants more.
[[nodiscard]] kvtl::status fit_calibration(const kvtl::shape& shape, workload& sample,
                                           const std::string& path, const rotation* turned = nullptr,
                                           std::uint32_t rank = 0);

} // namespace bench
