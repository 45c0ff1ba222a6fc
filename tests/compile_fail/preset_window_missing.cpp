// A preset says how many recent and first entries stay in memory.
// expect-error: \[kvtl\] preset: declare window_tokens and sink_tokens, or inherit them from presets::full
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct bad { // all slots, and nothing else
    using budget = kvtl::presets::dynakv::budget;
    using clusterer = kvtl::presets::dynakv::clusterer;
    using compressor = kvtl::presets::dynakv::compressor;
    using estimator = kvtl::presets::dynakv::estimator;
    using index = kvtl::presets::dynakv::index;
    using io = kvtl::presets::dynakv::io;
    using layout = kvtl::presets::dynakv::layout;
    using position = kvtl::presets::dynakv::position;
    using replacement = kvtl::presets::dynakv::replacement;
    using retention = kvtl::presets::dynakv::retention;
    using schedule = kvtl::presets::dynakv::schedule;
    using selector = kvtl::presets::dynakv::selector;
};

template class kvtl::kv_manager<bad>;
