// Entries that share a record are whole parts of the blocks in which attention works, and no plain rows.
// expect-error: \[kvtl\] compressor: granule is 1, 2, 4, 8, 16 or 32, and 1 where records are ragged
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/quest.hpp>

struct threes : kvtl::presets::quest::compressor {
    static constexpr std::uint32_t granule = 3;
};
struct bad : kvtl::presets::quest {
    using compressor = threes;
};

template class kvtl::kv_manager<bad>;
