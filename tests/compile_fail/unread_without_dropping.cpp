// Where nothing is dropped there is no budget, and entries on storage keep their positions.
// expect-error: \[kvtl\] budget: nothing reads it, as no entry is dropped
// expect-error: \[kvtl\] position: nothing reads it, as entries that are not dropped keep their positions
// expect-errors: 2
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_pyramid.hpp>
#include <kvtl/policies/position_rolling.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using budget = kvtl::pyramid;
    using position = kvtl::rolling;
};

template class kvtl::kv_manager<bad>;
