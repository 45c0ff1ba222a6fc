// Which query chose a unit does not travel to another layer.
// expect-error: \[kvtl\] selector: layers share its choice, which is then one for all queries
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_shared_by_layers.hpp>
#include <kvtl/presets/quest.hpp>

struct bad : kvtl::presets::quest {
    using selector = kvtl::shared_by_layers<2, kvtl::topk<kvtl::reduce::none>>;
};

template class kvtl::kv_manager<bad>;
