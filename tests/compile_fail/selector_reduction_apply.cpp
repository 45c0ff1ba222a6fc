// A reduction gets the scale of logits, too.
// expect-error: \[kvtl\] selector: a selector that uses scores names its `reduction` .*, with `linear` and static void apply
// SPDX-License-Identifier: MIT
#include <kvtl/presets/dynakv.hpp>

#include <cstdint>
#include <span>

struct without_scale {
    static constexpr bool linear = false;
    static void apply(std::span<float>, std::uint32_t, std::uint32_t) noexcept {}
};
struct bad : kvtl::presets::dynakv {
    using selector = kvtl::topk<without_scale>;
};

template class kvtl::kv_manager<bad>;
