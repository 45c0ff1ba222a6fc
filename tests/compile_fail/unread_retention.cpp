// A retention of one's own that drops nothing would do nothing.
// expect-error: \[kvtl\] retention: nothing reads it, as it drops no entries; use keep_all
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct demote : kvtl::keep_all {
    static constexpr std::string_view name = "demote";
};
struct bad : kvtl::presets::dynakv {
    using retention = demote;
};

template class kvtl::kv_manager<bad>;
