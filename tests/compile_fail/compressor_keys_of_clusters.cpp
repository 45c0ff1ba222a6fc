// Entries of clusters move, so their keys cannot stay where they were put in memory.
// expect-error: \[kvtl\] compressor: keys that are kept apart from values, records that several entries share, and codecs that
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_keys_in_memory.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using compressor = kvtl::keys_in_memory<kvtl::presets::dynakv::compressor>;
};

template class kvtl::kv_manager<bad>;
