// The control of signal_missing.cpp: an engine that supplies keys before RoPE.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct unrotated : kvtl::centroid {
    static constexpr kvtl::engine_input needs = kvtl::engine_input::k_pre;
};
struct pre_rope : kvtl::presets::dynakv {
    using index = unrotated;
};

template class kvtl::kv_manager<pre_rope,
                                kvtl::engine_inputs<kvtl::engine_input::q, kvtl::engine_input::k,
                                                    kvtl::engine_input::v, kvtl::engine_input::k_pre>>;
