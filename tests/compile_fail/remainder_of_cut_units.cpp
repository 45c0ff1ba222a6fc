// What stands in for unread units counts a unit that was cut off as read.
// expect-error: \[kvtl\] remainder: the selector cuts units off
// SPDX-License-Identifier: MIT
#include <kvtl/policies/remain_centroid_estimate.hpp>
#include <kvtl/presets/clusterkv.hpp>

struct bad : kvtl::presets::clusterkv {
    using remainder = kvtl::centroid_estimate;
};

template class kvtl::kv_manager<bad>;
