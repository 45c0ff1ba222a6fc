// A policy needs keys before RoPE and this engine supplies only q, k and v.
// expect-error: \[kvtl\] signals: a policy needs k_pre \(keys before RoPE\), which this engine does not supply
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unrotated : kvtl::centroid {
    static constexpr kvtl::signal needs = kvtl::signal::k_pre;
};
struct bad : kvtl::presets::dynakv {
    using index = unrotated;
};

template class kvtl::kv_manager<bad>;
