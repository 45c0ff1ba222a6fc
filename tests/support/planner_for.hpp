// The planner of a config, on a device with pages of 4 KiB.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/planner.hpp>

#include <cstddef>

namespace kvtl_test {

template <class Preset>
[[nodiscard]] kvtl::planner<kvtl::policies_of<Preset>> planner_for(const kvtl::cache_config<Preset>& c,
                                                                   std::size_t calibration_bytes = 0) {
    return {kvtl::settings_from(c), *kvtl::geometry::from(c.shape, c.attention.scale), 4096,
            calibration_bytes};
}

} // namespace kvtl_test
