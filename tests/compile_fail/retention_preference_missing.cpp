// A budget that divides by preference needs a score that measures it; one that evicts in the prompt, no late
// budget.
// expect-error: \[kvtl\] budget: it divides by preference, which this score does not measure
// expect-error: \[kvtl\] retention: this score evicts while the prompt comes in
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/presets/learned.hpp>

struct bad : kvtl::presets::locret {
    using budget = kvtl::cascade;
};

template class kvtl::kv_manager<bad>;
