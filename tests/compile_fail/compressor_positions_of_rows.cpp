// Rows that retention keeps in memory have neither lanes nor positions for a codec.
// expect-error: \[kvtl\] compressor: keys before RoPE, and codecs that are calibrated or fitted to lanes, need
// SPDX-License-Identifier: MIT
#include <kvtl/presets/low_rank.hpp>
#include <kvtl/presets/snapkv.hpp>

struct bad : kvtl::presets::snapkv_group {
    using compressor = kvtl::token_adaptive_rank<kvtl::coupling::head>;
};

template class kvtl::kv_manager<bad, kvtl::engine_inputs_for<bad>>;
