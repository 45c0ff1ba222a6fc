// An index costs memory; a selector without scores never asks it.
// expect-error: \[kvtl\] index: nothing reads it, as the selector chooses without scores
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_random_units.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using selector = kvtl::random_units;
};

template class kvtl::kv_manager<bad>;
