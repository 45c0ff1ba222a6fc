// Entries of clusters move one by one, so several cannot share a record.
// expect-error: \[kvtl\] compressor: keys that are kept apart from values, records that several entries share, and codecs that
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_channel_group.hpp>
#include <kvtl/presets/dynakv.hpp>

struct bad : kvtl::presets::dynakv {
    using compressor = kvtl::int4_channel_group<>;
};

template class kvtl::kv_manager<bad>;
