// Stored keys are scored in token order, which says nothing about the entries of clusters.
// expect-error: \[kvtl\] index: it scores keys where they are stored, which needs units that are runs of
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_stored_keys.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using index = kvtl::stored_keys;
};

template class kvtl::kv_manager<bad>;
