// The control of thinned_layer_wide.cpp and thinned_layer_late.cpp: heads decide together, and at once.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_voting_heads.hpp>
#include <kvtl/presets/flexgen.hpp>

struct good : kvtl::presets::flexgen {
    using retention = kvtl::drop<kvtl::voting_heads>;
};

static_assert(kvtl::preset_for<good, kvtl::default_engine_inputs>);
