// Entries on storage keep the positions they came with.
// expect-error: \[kvtl\] position: it moves keys, but entries in units or records keep their positions
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/position_rolling.hpp>
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>>;
    using position = kvtl::rolling;
};

template class kvtl::kv_manager<bad>;
