// SparQ Attention and FASA: single tokens scored in a part of the key channels.
//
// sparq  "SparQ Attention: Bandwidth-Efficient LLM Inference" (§3): every query reads the r channels where it is
//        largest, takes its own best tokens, and gives the mass of the others, as its scores have it, to the mean value.
//        r = 32 of 64 to 128. Deviations: sinks and window, which are always attended, are no part of the mean; its
//        share mixes the exact mass of what is attended with the approximate mass of the rest, where SparQ takes both
//        from approximate scores.
// fasa   "FASA" (abstract only): per head a few dominant frequency pairs of RoPE order the keys as all of
//        them do; the chosen tokens are attended in full. The pairs come from calibration, or from the
//        prompt's first keys.
//
// Both are extended to storage: the channels that score stay in memory, whole entries are read.
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

    /// Half the memory: the copy of the keys in 8 bits.
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
