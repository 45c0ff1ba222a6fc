// The control of feedback_full_with_topk.cpp: a selector that reads everything gives the full mass.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct greedy : kvtl::lru {
    static constexpr kvtl::feedback reads_mass = kvtl::feedback::full;
};
struct everything : kvtl::presets::dynakv {
    using selector = kvtl::all_units;
    using replacement = greedy;
};

template class kvtl::kv_manager<everything, kvtl::geometry<kvtl::shape{}>>;
