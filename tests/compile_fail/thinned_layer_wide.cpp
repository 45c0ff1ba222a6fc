// Units of all heads need heads that keep the same tokens.
// expect-error: \[kvtl\] granularity: a policy works on all KV heads of a layer together, but this retention lets every head keep
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/flexgen.hpp>

struct bad : kvtl::presets::flexgen {
    using retention = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>>;
};

template class kvtl::kv_manager<bad>;
