// Scores of every query are there where every query chooses by them.
// expect-error: \[kvtl\] remainder: it goes by the index's scores of every query
// SPDX-License-Identifier: MIT
#include <kvtl/policies/remain_scored_mean.hpp>
#include <kvtl/presets/pqcache.hpp>

struct bad : kvtl::presets::pqcache {
    using remainder = kvtl::scored_mean;
};

template class kvtl::kv_manager<bad>;
