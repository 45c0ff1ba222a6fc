// A score of one's own is a preset of two lines.
// expect-ok
// SPDX-License-Identifier: MIT
#include <kvtl/presets/snapkv.hpp>

struct every_other : kvtl::score_defaults {
    static constexpr std::string_view name = "every_other";
    static constexpr kvtl::score_source source = kvtl::score_source::keys;
    struct state : kvtl::score_state<config> {
        using kvtl::score_state<config>::score_state;
        template <kvtl::element E>
        void score(const kvtl::prompt_lane<E>& lane, std::span<float> out) const noexcept {
            for (std::uint32_t t = 0; t < lane.tokens(); ++t) out[t] = t % 2 == 0 ? 1.0F : 0.0F;
        }
    };
};
struct good : kvtl::presets::full {
    static constexpr std::uint32_t window_tokens = 4;
    using retention = kvtl::drop<every_other>;
};

template class kvtl::kv_manager<good>;
