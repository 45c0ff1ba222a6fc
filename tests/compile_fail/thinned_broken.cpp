// A slot that breaks a rule is explained in a preset that drops and retrieves as in any other.
// expect-error: \[kvtl\] selector: it chooses by score, but this index keeps none
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_drop.hpp>
#include <kvtl/policies/retain_window_attention.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using retention = kvtl::drop<kvtl::window_attention<kvtl::over::mean, kvtl::pooling::average, 5>>;
    using index = kvtl::no_index;
};

template class kvtl::kv_manager<bad>;
