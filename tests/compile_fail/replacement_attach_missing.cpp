// A replacement policy goes on from a block that another state has filled: what is resident moves with it.
// expect-error: \[kvtl\] replacement::state: let its constructor take a state_block behind the memory
// expect-errors: 1
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct always_fresh : kvtl::lru {
    struct state : kvtl::lru::state {
        state() = default;
        state(const config& c, std::uint32_t handles, std::uint32_t unit_pages,
              std::span<std::byte> memory) noexcept
            : kvtl::lru::state(c, handles, unit_pages, memory) {}
    };
};
struct bad : kvtl::presets::dynakv {
    using replacement = always_fresh;
};

template class kvtl::kv_manager<bad>;
