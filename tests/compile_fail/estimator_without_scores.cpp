// Scores of every query are there where every query chooses by them.
// expect-error: \[kvtl\] estimator: it goes by the index's scores of every query
// SPDX-License-Identifier: MIT
#include <kvtl/policies/estimate_scored_mean.hpp>
#include <kvtl/presets/pqcache.hpp>

struct bad : kvtl::presets::pqcache {
    using estimator = kvtl::scored_mean;
};

template class kvtl::kv_manager<bad>;
