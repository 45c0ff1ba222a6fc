// choose() runs inside the decode loop and may not throw.
// expect-error: \[kvtl\] selector::state: choose\(\) must be noexcept
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct careless {
    static constexpr std::string_view name = "careless";
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    struct config {};
    struct state {
        state() = default;
        state(const config&, const kvtl::geometry&) noexcept {}
        std::uint32_t choose(const kvtl::choice_input&, std::span<kvtl::chosen_unit>) const { return 0; }
    };
};
struct bad : kvtl::presets::dynakv {
    using selector = careless;
};

template class kvtl::kv_manager<bad>;
