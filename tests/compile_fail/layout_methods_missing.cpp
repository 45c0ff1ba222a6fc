// A page-wise layout has to place units.
// expect-error: \[kvtl\] layout::state: a page-wise layout needs noexcept arrange\(arrangement\), place_unit
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct streams_only : kvtl::sequence_order { // has runs, but no units
    static constexpr bool by_entry = false;
};
struct bad : kvtl::presets::dynakv {
    using layout = streams_only;
};

template class kvtl::kv_manager<bad>;
