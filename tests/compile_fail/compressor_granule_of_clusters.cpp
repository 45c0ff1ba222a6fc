// Entries of clusters move one by one, so several cannot share a record.
// expect-error: \[kvtl\] compressor: keys that are kept apart from values, records that several entries share, and codecs that
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/int8.hpp>

struct pairs : kvtl::int8_row<> {
    static constexpr std::uint32_t granule = 2;
};
struct bad : kvtl::presets::dynakv {
    using compressor = pairs;
};

template class kvtl::kv_manager<bad>;
