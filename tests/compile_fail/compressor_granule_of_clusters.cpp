// Entries of clusters move one by one, so several cannot share a record; nor can as many as make no block.
// expect-error: \[kvtl\] compressor: keys that stay in memory, and records that several entries share, need units that
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct pairs : kvtl::presets::dynakv::compressor {
    static constexpr std::uint32_t granule = 2;
};
struct bad : kvtl::presets::dynakv {
    using compressor = pairs;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
