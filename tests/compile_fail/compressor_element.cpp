// Entries are stored as f32, f16 or bf16.
// expect-error: \[kvtl\] compressor: declare plain_type as float, f16 or bf16
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct doubled {
    static constexpr std::string_view name = "f64";
    using plain_type = double;
};
struct bad : kvtl::presets::dynakv {
    using compressor = doubled;
};

template class kvtl::kv_manager<bad>;
