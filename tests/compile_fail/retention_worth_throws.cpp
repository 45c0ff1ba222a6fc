// What a score says an entry is worth is asked inside the decode loop.
// expect-error: \[kvtl\] score::state: it evicts in decode; worth\(held_entry, record\) returns float
// expect-error: \[kvtl] engine_inputs: a policy needs x \(the input of the layer\), which this engine does not supply
// SPDX-License-Identifier: MIT
#include <kvtl/presets/snapkv.hpp>

struct worthless : kvtl::score_defaults {
    static constexpr std::string_view name = "worthless";
    static constexpr kvtl::engine_input needs = kvtl::engine_input::x;
    static constexpr kvtl::score_source source = kvtl::score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    struct state : kvtl::score_state<config> {
        using kvtl::score_state<config>::score_state;
        void arrive(const kvtl::arriving&, std::span<float>) const noexcept {}
        [[nodiscard]] float worth(const kvtl::held_entry& e, const record&) const { return e.score; }
    };
};
struct bad : kvtl::presets::full {
    using retention = kvtl::drop<worthless>;
};

template class kvtl::kv_manager<bad>;
