// Selector: every unit whose speculated logit is within alpha of the best one (InfiniGen), within the budget.
//
//   n = number of units with logit_scale * score > max - alpha
//
// A head with spread attention takes many units, and a peaked one few. The paper gives all heads of a layer
// one n, the mean of their counts. Here every lane has its own.
//
// Cost:   as top-k.
// Limits: the reduction must leave logits (group_mean, group_max), not probabilities. In lanes of several KV
//         heads the score is a sum over `heads`, and alpha applies to their mean.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>

#include <cmath>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Reduce, query Source = query::current> struct max_minus_alpha {
    static constexpr std::string_view name = "max_minus_alpha";
    static constexpr engine_input needs = engine_input::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    using reduction = Reduce;
    struct config {
        float alpha = 4.0F;      ///< 4: OPT and the paper's speed runs; 5: Llama
        std::uint32_t heads = 1; ///< KV heads per lane; 0: all, for presets with lanes of a whole layer
        template <class Visit> void fields(Visit&& visit) { visit("alpha", alpha); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry& g) noexcept
            : below_(c.alpha / g.logit_scale() * static_cast<float>(c.heads != 0 ? c.heads : g.kv_heads())) {}

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            if (in.score.empty()) return 0;
            const float bar = simd::max_of(in.score.data(), in.score.size()) - below_;
            return keep_above(bar, in.score, out.first(best_.choose(in, out)));
        }

      private:
        float below_ = 0.0F;
        typename topk<Reduce, Source>::state best_;
    };
};

}} // namespace kvtl::v0
