// A unit of all heads has as many entries of each.
// expect-error: \[kvtl\] granularity: units or records span all KV heads of a layer, so the heads must keep equally many plain entries
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/flexgen.hpp>

struct bad : kvtl::presets::flexgen {
    using retention = kvtl::drop<kvtl::voting_heads>;
    using budget = kvtl::progressive;
};

template class kvtl::kv_manager<bad>;
