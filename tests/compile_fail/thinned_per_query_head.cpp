// Units belong to KV heads, so query heads cannot keep entries of their own.
// expect-error: \[kvtl\] retention: this score keeps entries for every query head
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5, true>>;
};

template class kvtl::kv_manager<bad>;
