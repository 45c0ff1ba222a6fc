// An index that scores has to have a score().
// expect-error: \[kvtl\] index::state: add `void score\(const float\* q, std::uint32_t queries
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct silent : kvtl::no_index {
    static constexpr bool scores = true;
};
struct bad : kvtl::presets::dynakv {
    using index = silent;
};

template class kvtl::kv_manager<bad>;
