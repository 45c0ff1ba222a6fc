// Keys come from storage in token order, which says nothing about the entries of clusters.
// expect-error: \[kvtl\] index: it scores keys as they come from storage, which needs units that are runs of
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_streamed_keys.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using index = kvtl::streamed_keys;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
