// Only a selector that reads everything sees the full attention mass.
// expect-error: \[kvtl\] feedback: a policy reads the full attention mass, but the selector does not read everything
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct greedy : kvtl::lru {
    static constexpr kvtl::feedback reads_mass = kvtl::feedback::full;
};
struct bad : kvtl::presets::dynakv {
    using replacement = greedy;
};

template class kvtl::kv_manager<bad, kvtl::geometry<kvtl::shape{}>>;
