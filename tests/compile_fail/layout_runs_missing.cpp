// Every layout hands out runs for prompts that are being staged.
// expect-error: \[kvtl\] layout::state: add noexcept run_pages\(\), allocate_run\(\), release_run\(first\)
// expect-error: \[kvtl\] layout::state: add `static std::size_t bytes\(const layout_limits&\)`
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct nowhere {
    static constexpr std::string_view name = "nowhere";
    static constexpr bool by_entry = true;
    static constexpr bool wants_correlation = false;
    struct config {};
    struct state {
        state() = default;
        state(const config&, const kvtl::layout_limits&, std::span<std::byte>) noexcept {}
    };
};
struct bad : kvtl::presets::dynakv {
    using layout = nowhere;
};

template class kvtl::kv_manager<bad>;
