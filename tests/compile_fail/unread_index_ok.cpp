// The control of unread_index.cpp: without the index.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_random_units.hpp>
#include <kvtl/presets/dynakv.hpp>

struct good : kvtl::presets::dynakv {
    using index = kvtl::no_index;
    using selector = kvtl::random_units;
};

template class kvtl::kv_manager<good>;
