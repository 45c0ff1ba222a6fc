// SparQ Attention and FASA: single tokens, scored in some of the key channels.
//
// sparq  "SparQ Attention: Bandwidth-Efficient LLM Inference" (§3): every query reads the r channels where it
//        is largest, and takes its own best tokens. The mean value stands in for all other tokens. Its weight
//        is their attention mass, estimated from the scores. r = 32 of 64 to 128. Deviations: sinks and
//        window, which are always attended, are not part of the mean. The weight of the mean combines the
//        exact mass of attended entries with the approximate mass of the others; SparQ takes both from
//        approximate scores.
// fasa   "FASA" (only its abstract was at hand): in each head, a few frequency pairs of RoPE rank the keys
//        almost as all pairs do. The chosen tokens are attended in full. The pairs come from calibration, or
//        from the first keys of the prompt.
//
// Extension to storage, in both: the channels that score stay in memory, and whole entries are read.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/estimate_scored_mean.hpp>
#include <kvtl/policies/index_channel_subset.hpp>
#include <kvtl/policies/index_frequency_pairs.hpp>
#include <kvtl/policies/select_topk.hpp>
#include <kvtl/presets/flexgen.hpp>

namespace kvtl { inline namespace v0 {

namespace presets {

struct sparq : offloaded {
    static constexpr std::string_view name = "sparq";
    using index = channel_subset;
    using selector = topk<reduce::none>;
    using estimator = scored_mean;

    /// Half of the memory: the copy of the keys has 8 bits per number.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.bits == 8) return false;
        c.index.bits = 8;
        return true;
    }
};

struct fasa : offloaded {
    static constexpr std::string_view name = "fasa";
    using index = frequency_pairs;
    using selector = topk<reduce::group_mean>;

    /// Fewer pairs, never below 2.
    template <class Config> static bool shrink(Config& c) noexcept {
        if (c.index.pairs <= 2) return false;
        c.index.pairs /= 2;
        return true;
    }
};

} // namespace presets

using sparq = kv_manager<presets::sparq>;
using fasa = kv_manager<presets::fasa>;

}} // namespace kvtl::v0
