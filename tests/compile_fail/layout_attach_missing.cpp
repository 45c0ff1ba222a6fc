// A layout goes on from a block that another state has filled: sequences are saved and copied with it.
// expect-error: \[kvtl\] layout::state: let its constructor take a state_block behind the memory
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct always_fresh : kvtl::dual_head {
    struct state : kvtl::dual_head::state {
        state() = default;
        state(const config& c, const kvtl::layout_limits& limits, std::span<std::byte> memory) noexcept
            : kvtl::dual_head::state(c, limits, memory) {}
    };
};
struct bad : kvtl::presets::dynakv {
    using layout = always_fresh;
};

template class kvtl::kv_manager<bad>;
