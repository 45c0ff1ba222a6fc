// Every broken requirement gets its sentence in one compilation.
// expect-error: \[kvtl\] selector: it chooses by score, but this index keeps none
// expect-error: \[kvtl\] compressor: declare plain_type as float, f16 or bf16
// expect-error: \[kvtl\] replacement: add an aggregate `struct config`
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct named {
    static constexpr std::string_view name = "named";
};
struct bad : kvtl::presets::dynakv {
    using index = kvtl::no_index;
    using compressor = named;
    using replacement = named;
};

template class kvtl::kv_manager<bad>;
