// Quest: pages of 16 consecutive tokens, scored by an upper bound from the channel-wise minimum and maximum
// of their keys. Every query head takes its own best pages.
//
// Paper: "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference" (§3.2-3.3). Deviations: pages
// are fetched from storage (the paper keeps them in GPU memory). The first two layers are not dense, unlike
// in the paper's code.
//
// quest_top_p: every query head takes pages until their bounds hold a share of the attention (Twilight's rule on
// Quest's pages). Twilight estimates attention with keys of 4 bits. Bounds overestimate it.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_minmax_box.hpp>
#include <kvtl/policies/select_top_p.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct quest : offloaded {
    static constexpr std::string_view name = "quest";
    using clusterer = head_groups<16>;
    using index = minmax_box;
    using selector = topk<reduce::none>;

    /// Longer pages: each call halves the number of boxes.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.clusterer.group_tokens >= 128) return false;
        c.clusterer.group_tokens *= 2;
        return true;
    }
};

struct quest_top_p : quest {
    static constexpr std::string_view name = "quest_top_p";
    using selector = top_p<reduce::none>;
};

} // namespace presets

using quest = kv_manager<presets::quest>;
using quest_top_p = kv_manager<presets::quest_top_p>;

}} // namespace kvtl::v0
