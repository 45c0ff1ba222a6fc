// A preset that does not inherit has to name every slot; each missing one is named.
// expect-error: \[kvtl\] preset: the slot `layout` is missing; name a policy or inherit one from presets::full
// expect-error: \[kvtl\] preset: the slot `index` is missing; name a policy or inherit one from presets::full
// expect-error: \[kvtl\] preset: declare window_tokens and sink_tokens
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct bad { // presets::full without layout, index, window_tokens and sink_tokens
    using clusterer = kvtl::single_tokens;
    using selector = kvtl::all_units;
    using estimator = kvtl::nothing;
    using budget = kvtl::uniform;
    using retention = kvtl::keep_all;
    using compressor = kvtl::raw<kvtl::f16>;
    using position = kvtl::original;
    using replacement = kvtl::lru;
    using schedule = kvtl::on_demand;
    using io = kvtl::in_memory;
};

template class kvtl::kv_manager<bad>;
