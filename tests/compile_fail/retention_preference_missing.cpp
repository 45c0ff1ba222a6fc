// A budget that divides by preference needs a score that measures it; a merging retention no late budget.
// expect-error: \[kvtl\] budget: it divides by preference, which this score does not measure
// expect-error: \[kvtl\] budget: a late budget cuts off entries that a merging retention never sees
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/presets/merging.hpp>

struct bad : kvtl::presets::d2o {
    using budget = kvtl::cascade;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
