// A policy needs keys before RoPE and this engine supplies only q, k and v.
// expect-error: \[kvtl] engine_inputs: a policy needs k_pre \(keys before RoPE\), which this engine does not supply
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unrotated : kvtl::centroid {
    static constexpr kvtl::engine_input needs = kvtl::engine_input::k_pre;
};
struct bad : kvtl::presets::dynakv {
    using index = unrotated;
};

template class kvtl::kv_manager<bad>;
