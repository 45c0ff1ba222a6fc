// Numbers of clusters mean nothing in another layer.
// expect-error: \[kvtl\] selector: layers share its choice, which needs units that are runs of consecutive entries
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_shared_by_layers.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using selector = kvtl::shared_by_layers<2, kvtl::topk<kvtl::reduce::group_mean>>;
};

template class kvtl::kv_manager<bad>;
