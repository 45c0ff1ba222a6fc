// What stands in for unread units counts a unit that was cut off as read.
// expect-error: \[kvtl\] estimator: the selector cuts units off
// SPDX-License-Identifier: MIT
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/presets/clusterkv.hpp>

struct bad : kvtl::presets::clusterkv {
    using estimator = kvtl::centroid_estimate;
};

template class kvtl::kv_manager<bad>;
