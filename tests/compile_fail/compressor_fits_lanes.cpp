// What no store calls yet is refused, not ignored.
// expect-error: \[kvtl\] compressor: stores encode one row at a time, keys after RoPE, with nothing fitted
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_int8_row.hpp>
#include <kvtl/presets/dynakv.hpp>

struct fitted : kvtl::int8_row<> {
    static constexpr bool fits_lanes = true;
};
struct bad : kvtl::presets::dynakv {
    using compressor = fitted;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
