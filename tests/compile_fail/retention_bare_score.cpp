// A score only ranks entries; what becomes of them the retention says.
// expect-error: \[kvtl\] retention: this is a score, which only ranks entries; wrap it in drop<...>
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>;
};

template class kvtl::kv_manager<bad>;
