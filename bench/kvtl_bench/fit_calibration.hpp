// The one place where the bench gets bases for policies that need some fitted offline.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/status.hpp>

#include "workload.hpp"

#include <string>

namespace bench {

/// Fits what policies of this shape may need to the prompt of a sample, which is another text of the same
/// model, and writes it to `path` for cache_options::calibration. Called outside all timers. of_entries:
/// also (H*D, H*D) bases of keys before RoPE and of values, which only codecs read.
[[nodiscard]] kvtl::status fit_calibration(const kvtl::shape& shape, workload& sample,
                                           const std::string& path, bool of_entries = false);

} // namespace bench
