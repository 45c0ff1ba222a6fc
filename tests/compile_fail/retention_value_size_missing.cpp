// A score that reads the values' sizes says what a value's size is.
// expect-error: \[kvtl\] score::state: it reads values; add `float value_size
// SPDX-License-Identifier: MIT
#include <kvtl/presets/query_free.hpp>

struct by_value : kvtl::key_norm {
    static constexpr bool reads_values = true;
};
struct bad : kvtl::presets::knorm {
    using retention = kvtl::drop<by_value>;
};

template class kvtl::kv_manager<bad>;
