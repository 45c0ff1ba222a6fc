// The control of thinned_layer_late.cpp: with units of one head budgets may come late and entries may be merged.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/retain_heavy_hitters.hpp>
#include <kvtl/policies/retain_merge.hpp>
#include <kvtl/presets/dynakv.hpp>

struct good : kvtl::presets::dynakv {
    using retention = kvtl::merge_into<kvtl::heavy_hitters_of_prompt, kvtl::similar_runs>;
    using budget = kvtl::progressive;
};

static_assert(kvtl::preset_for<good, kvtl::default_engine_inputs>);
