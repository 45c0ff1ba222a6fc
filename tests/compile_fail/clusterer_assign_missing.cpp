// A clusterer has to say where a new entry goes.
// expect-error: \[kvtl\] clusterer::state: add `assignment assign\(lane&, const float\* key
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct undecided {
    static constexpr std::string_view name = "undecided";
    static constexpr kvtl::granularity unit_of = kvtl::granularity::head;
    static constexpr bool needs_means = false;
    static constexpr bool updates_means = false;
    static constexpr bool adapts = false;
    static constexpr bool clusters_prompt = false;
    struct config {};
    struct lane {};
    struct state {
        state() = default;
        state(const config&, const kvtl::geometry&) noexcept {}
        static kvtl::status check(const config&) noexcept { return {}; }
        std::uint32_t max_entries() const noexcept { return 1; }
        std::uint32_t max_units(std::uint32_t tokens) const noexcept { return tokens; }
        std::uint32_t sequential_entries() const noexcept { return 1; }
        std::uint32_t pending_entries() const noexcept { return 1; }
        std::size_t scratch_bytes(std::uint32_t, std::uint32_t) const noexcept { return 0; }
    };
};
struct bad : kvtl::presets::dynakv {
    using clusterer = undecided;
};

template class kvtl::kv_manager<bad>;
