// The input of a layer is there only when a token arrives, and units take rows that waited in the window.
// expect-error: \[kvtl\] compressor: records of a layer's input are made when a token arrives, and only presets that keep
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_recomputed.hpp>
#include <kvtl/presets/flexgen.hpp>

struct bad : kvtl::presets::flexgen {
    using compressor = kvtl::recomputed<float>;
};

template class kvtl::kv_manager<bad, kvtl::engine_inputs_for<bad>>;
