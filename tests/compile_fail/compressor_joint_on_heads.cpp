// A basis for all heads of a layer has no units of one head (the paper's own constraint, §5.2).
// expect-error: \[kvtl\] granularity:
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/low_rank.hpp>

struct bad : kvtl::presets::dynakv {
    using compressor = kvtl::token_adaptive_rank<kvtl::coupling::layer>;
};

template class kvtl::kv_manager<bad, kvtl::engine_inputs_for<bad>>;
