// A state is copied with its shard: it may not own memory.
// expect-error: \[kvtl\] replacement::state: it must be trivially copyable
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include <vector>

struct remembering : kvtl::lru {
    static constexpr std::string_view name = "remembering";
    struct state : kvtl::lru::state {
        using kvtl::lru::state::state;
        std::vector<std::uint32_t> history;
    };
};
struct bad : kvtl::presets::dynakv {
    using replacement = remembering;
};

template class kvtl::kv_manager<bad>;
