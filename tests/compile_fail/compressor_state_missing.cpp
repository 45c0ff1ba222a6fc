// A compressor says what its records are and codes them.
// expect-error: \[kvtl\] compressor: add a name, an aggregate `struct config`, and the constants domain
// expect-error: \[kvtl\] compressor::state: add noexcept score
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct half_done {
    static constexpr std::string_view name = "half_done";
    using plain_type = float;
};
struct bad : kvtl::presets::dynakv {
    using compressor = half_done;
};

template class kvtl::kv_manager<bad>;
