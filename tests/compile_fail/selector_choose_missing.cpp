// A selector that does not take everything has to choose.
// expect-error: \[kvtl\] selector::state: add `std::uint32_t choose
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct mute {
    static constexpr std::string_view name = "mute";
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    struct config {};
    struct state {
        state() = default;
        state(const config&, const kvtl::geometry&) noexcept {}
    };
};
struct bad : kvtl::presets::dynakv {
    using selector = mute;
};

template class kvtl::kv_manager<bad>;
