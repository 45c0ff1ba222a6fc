// A replacement policy has to name a victim.
// expect-error: \[kvtl\] replacement::state: add `std::uint32_t victim\(pinned\) const noexcept`
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct hoarder {
    static constexpr std::string_view name = "hoarder";
    struct config {};
    struct state {
        state() = default;
        state(const config&, std::uint32_t, std::uint32_t, std::span<std::byte>) noexcept {}
        static std::size_t bytes(std::uint32_t, std::uint32_t) noexcept { return 0; }
        void tick() noexcept {}
        void admit(std::uint32_t, kvtl::resident_facts) noexcept {}
        void touch(std::uint32_t) noexcept {}
        void refresh(std::uint32_t, kvtl::resident_facts) noexcept {}
        void remove(std::uint32_t) noexcept {}
    };
};
struct bad : kvtl::presets::dynakv {
    using replacement = hoarder;
};

template class kvtl::kv_manager<bad>;
