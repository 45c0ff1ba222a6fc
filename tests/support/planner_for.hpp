// The planner of a config, on a device with pages of 4 KiB.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/core/plan/planner.hpp>

#include <cstddef>

namespace kvtl_test {

template <class Preset> class planner_for {
  public:
    explicit planner_for(const kvtl::cache_config<Preset>& c, std::size_t calibration_bytes = 0)
        : planner_(c), cache_{*kvtl::geometry::from(c.shape, c.attention.scale), 4096, calibration_bytes} {}

    [[nodiscard]] kvtl::result<std::size_t> plan() { return planner_.plan(cache_); }
    [[nodiscard]] kvtl::result<std::size_t> least() { return planner_.least(cache_); }
    [[nodiscard]] const kvtl::sized_cache& sizes() const { return planner_.sizes; }
    [[nodiscard]] const auto& rows() const { return planner_.rows; }

  private:
    kvtl::planner<kvtl::policies_of<Preset>> planner_;
    kvtl::plan_inputs cache_;
};

} // namespace kvtl_test
