// A selector that goes by errors needs an estimator that knows them.
// expect-error: \[kvtl\] selector: it goes by_errors, which needs an estimator with price
// SPDX-License-Identifier: MIT
#include <kvtl/policies/estimate_centroid.hpp>
#include <kvtl/presets/best.hpp>

struct bad : kvtl::presets::kvtl_best {
    using estimator = kvtl::centroid_estimate_spread;
};

template class kvtl::kv_manager<bad>;
