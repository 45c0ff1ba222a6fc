// A preset says how many recent and first entries stay in memory.
// expect-error: \[kvtl\] preset: declare window_tokens and sink_tokens, or inherit them from presets::full
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct bad : private kvtl::presets::dynakv { // private: only what is named again is seen
    using kvtl::presets::dynakv::budget;
    using kvtl::presets::dynakv::clusterer;
    using kvtl::presets::dynakv::compressor;
    using kvtl::presets::dynakv::estimator;
    using kvtl::presets::dynakv::index;
    using kvtl::presets::dynakv::io;
    using kvtl::presets::dynakv::layout;
    using kvtl::presets::dynakv::position;
    using kvtl::presets::dynakv::replacement;
    using kvtl::presets::dynakv::retention;
    using kvtl::presets::dynakv::schedule;
    using kvtl::presets::dynakv::selector;
};

template class kvtl::kv_manager<bad>;
