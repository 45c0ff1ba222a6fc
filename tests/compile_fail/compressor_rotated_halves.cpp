// A codec that takes 16-bit numbers would round between rotation and code.
// expect-error: \[kvtl\] rotated: a codec whose plain_type is float, such as int4_group<float>
// SPDX-License-Identifier: MIT
#include <kvtl/presets/low_bits.hpp>

struct bad : kvtl::presets::full_int4 {
    using compressor = kvtl::rotated<kvtl::int4_group<>>;
};

template class kvtl::kv_manager<bad>;
