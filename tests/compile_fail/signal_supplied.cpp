// The control of signal_missing.cpp: an engine that supplies keys before RoPE.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unrotated : kvtl::centroid {
    static constexpr kvtl::signal needs = kvtl::signal::k_pre;
};
struct pre_rope : kvtl::presets::dynakv {
    using index = unrotated;
};

template class kvtl::kv_manager<
    pre_rope, kvtl::supplied<kvtl::signal::q, kvtl::signal::k, kvtl::signal::v, kvtl::signal::k_pre>>;
