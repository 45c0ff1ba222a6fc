// Entries that are merged must be plain rows.
// expect-error: \[kvtl\] compressor: the retention merges kept rows, which in memory must be
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/presets/merging.hpp>

struct bad : kvtl::presets::d2o {
    using compressor = kvtl::int8_row<>;
};

template class kvtl::kv_manager<bad>;
