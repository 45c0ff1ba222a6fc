// Attention mass is fed back to retentions.
// expect-error: \[kvtl\] feedback: nothing feeds attention mass back to a clusterer, budget or replacement
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct greedy : kvtl::lru {
    static constexpr kvtl::feedback reads_mass = kvtl::feedback::full;
};
struct bad : kvtl::presets::dynakv {
    using replacement = greedy;
};

template class kvtl::kv_manager<bad>;
