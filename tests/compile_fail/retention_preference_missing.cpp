// A budget that divides by preference needs a score that measures it; one that evicts in the prompt, no late
// budget and no demotion. Demoted rows have the element of the others.
// expect-error: \[kvtl\] budget: it divides by preference, which this score does not measure
// expect-error: \[kvtl\] retention: this score evicts while the prompt comes in
// expect-error: \[kvtl\] retention: demoted entries stay in rows in memory
// expect-error: \[kvtl\] retention: it demotes to a codec of single entries
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/policies/retain_demote.hpp>
#include <kvtl/presets/learned.hpp>

struct bad : kvtl::presets::locret {
    using budget = kvtl::cascade;
};

struct early : kvtl::presets::locret {
    using retention = kvtl::demote<kvtl::retention_gate, kvtl::int2_group<kvtl::bf16>>;
};

template class kvtl::kv_manager<bad>;
template class kvtl::kv_manager<early>;
