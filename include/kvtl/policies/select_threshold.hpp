// Selector: every unit that promises more than a fixed share of the attention (Squeezed Attention),
// best first, as far as the budget goes.
//
//   share(unit i) = exp(s_i) / sum over units j of N_j exp(s_j) > threshold
//   s = logit_scale * score, N: entries
//
// The share is that of one entry at the unit's centroid, so small units are not held against large ones;
// one threshold for all layers and heads lets those with spread attention take more. The paper calibrates
// it on the last queries of a fixed prompt so that a wanted number of keys passes on average; here it is
// given.
//
// Cost:   that of top-k, and an exponential per unit.
// Limits: the reduction must leave logits (group_mean, group_max); of lanes of several KV heads scores are
//         sums over `heads`, and their mean counts.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Reduce, query Source = query::current> struct threshold {
    static constexpr std::string_view name = "threshold";
    static constexpr signal needs = signal::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    using reduction = Reduce;
    struct config {
        float share = 5e-4F;     ///< of the attention, per entry: the mean among 2,000 entries
        std::uint32_t heads = 1; ///< KV heads per lane; 0: all, for presets with lanes of a whole layer
        template <class Visit> void fields(Visit&& visit) { visit("share", share); }
    };

    template <class Geometry> class state {
      public:
        state() = default;
        state(const config& c, const Geometry& g) noexcept
            : scale_(g.logit_scale() / static_cast<float>(c.heads != 0 ? c.heads : g.kv_heads())),
              log_share_(std::log(c.share)) {}

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            if (in.score.empty()) return 0;
            const float bar = (log_share_ + log_sum(in)) / scale_;
            // The best come first, so those above the bar are a prefix.
            std::uint32_t n = best_.choose(in, out);
            while (n != 0 && !(in.score[out[n - 1].unit] > bar)) --n;
            return n;
        }

      private:
        /// log of the sum over all entries of exp(logit of the entry's unit)
        [[nodiscard]] float log_sum(const choice_input& in) const noexcept {
            const float largest = simd::max_of(in.score.data(), in.score.size()) * scale_;
            float sum = 0.0F, weight[64];
            for (std::size_t first = 0; first < in.score.size(); first += std::size(weight)) {
                const std::size_t n = std::min(std::size(weight), in.score.size() - first);
                std::copy_n(&in.score[first], n, weight);
                simd::scale(scale_, weight, n);
                static_cast<void>(simd::exp_shifted_sum(weight, n, largest));
                for (std::size_t i = 0; i < n; ++i)
                    sum += weight[i] * static_cast<float>(in.entries(static_cast<std::uint32_t>(first + i)));
            }
            return largest + std::log(sum);
        }

        float scale_ = 1.0F, log_share_ = -std::numeric_limits<float>::infinity();
        typename topk<Reduce, Source>::template state<Geometry> best_;
    };
};

}} // namespace kvtl::v0
