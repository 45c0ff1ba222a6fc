// A clusterer that groups a prompt has to be able to.
// expect-error: \[kvtl\] clusterer: the state of one that clusters_prompt needs noexcept ready\(entries\), segment_entries\(\), least_segment\(\), group\(keys, scratch, label\)
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

struct promising {
    static constexpr std::string_view name = "promising";
    static constexpr kvtl::granularity unit_of = kvtl::granularity::head;
    static constexpr bool needs_means = false;
    static constexpr bool updates_means = false;
    static constexpr bool adapts = false;
    static constexpr bool clusters_prompt = true;
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
        kvtl::assignment assign(lane&, const float*, const kvtl::units_view&,
                                std::span<float>) const noexcept {
            return {};
        }
    };
};
struct bad : kvtl::presets::dynakv {
    using clusterer = promising;
};

template class kvtl::kv_manager<bad>;
