// A selector that takes notes of a prompt says what they come to.
// expect-error: \[kvtl\] selector: one with prompt_notes .* adds
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct notes_alone : kvtl::topk<kvtl::reduce::group_mean> {
    struct prompt_notes {
        float sum = 0;
    };
};
struct bad : kvtl::presets::dynakv {
    using selector = notes_alone;
};

template class kvtl::kv_manager<bad>;
