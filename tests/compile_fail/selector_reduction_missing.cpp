// A selector that ranks by score says how the scores of a query group become one.
// expect-error: \[kvtl\] selector: a selector that uses scores names its `reduction`
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unreduced : kvtl::all_units {
    static constexpr bool uses_scores = true;
};
struct bad : kvtl::presets::dynakv {
    using selector = unreduced;
};

template class kvtl::kv_manager<bad>;
