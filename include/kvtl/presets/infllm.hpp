// InfLLM: blocks of consecutive tokens, represented by four of their own keys.
//
// Paper: "InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context Memory" (§3.2):
// blocks of 128 with four representative tokens each. The best blocks join the initial tokens (128) and the
// local window (4096), with an LRU cache of blocks. Decided by measurement (bench/results): blocks of 8,
// scored by their best representative. The paper sums over the representatives (`using index =
// representatives`).
//
// Deviations:
//   - Representatives are chosen by their spread, not by local attention, which an index does not see
//     (index_representatives.hpp compares the two).
//   - Distant blocks keep their positions. The paper gives them one position, for models beyond their
//     context.
//   - There are 4 sinks and a window of 32, as in the comparison.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/index_representatives.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

/// Blocks of 8, so that several fit into a few dozen attended tokens. clusterer.group_tokens = 128 is the
/// paper's.
struct infllm : offloaded {
    static constexpr std::string_view name = "infllm";
    using clusterer = head_groups<8>;
    using index = best_representative;
    using selector = topk<reduce::group_mean>;

    /// Fewer representatives, then longer blocks.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.count > 1)
            c.index.count /= 2;
        else if (c.clusterer.group_tokens < 128)
            c.clusterer.group_tokens *= 2;
        else
            return false;
        return true;
    }
};

} // namespace presets

using infllm = kv_manager<presets::infllm>;

}} // namespace kvtl::v0
