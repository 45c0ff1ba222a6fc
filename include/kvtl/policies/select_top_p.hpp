// Selector: the best units until they hold a share p of the attention (Twilight, Double-P), within the budget.
//
//   smallest n with  sum of mass(u) over the n best units >= p * sum of mass(u) over all units
//   mass(u) = entries(u) exp(logit_scale * score(u))
//
// A head with peaked attention takes few units, and a head with spread attention takes many. Units are taken
// by score, so by mass per entry: this needs the fewest entries. A unit that would exceed the budget is
// skipped, as by top-k. The reduction leaves logits (group_mean, group_max, none) or weights of attention
// (softmax_sum: the mass of all queries together).
//
// Source: Twilight (Lin et al., NeurIPS 2025, §4): top-p instead of top-k, after a conservative choice.
//         Double-P (2026): the same for clusters, weighted by their size. Deviations: attend_tokens bounds the
//         choice. The share is that of the units, without sinks and window, which are always attended.
//         Masses come from the index of the preset (Twilight: keys of 4 bits; Double-P: mean keys). Whole
//         units are attended (Twilight and Double-P choose tokens within them). With softmax_sum each query is
//         normalised without entries(u), so a query whose attention lies in large units weighs more.
// Cost:   as top-k, an exponential per unit, and a sort of the chosen units.
// Limits: masses from an upper bound (minmax_box) are too large where boxes are wide, so more units than
//         needed are taken. In lanes of several KV heads scores are sums over `heads`; the rule uses their
//         mean. Not for an index that pins units.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>
#include <kvtl/policies/support/unit_mass.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Reduce, query Source = query::current> struct top_p {
    static constexpr std::string_view name = "top_p";
    static constexpr engine_input needs = engine_input::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    using reduction = Reduce;
    struct config {
        float p = 0.95F;         ///< share of attention that the chosen units hold; 1: top-k
        std::uint32_t heads = 1; ///< KV heads per lane; 0: all, for presets with lanes of a whole layer
        template <class Visit> void fields(Visit&& visit) { visit("p", p); }
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry& g) noexcept
            : scale_(g.logit_scale() / static_cast<float>(c.heads != 0 ? c.heads : g.kv_heads())), p_(c.p) {}
        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.p > 0.0F && c.p <= 1.0F) return {};
            return status::failure(errc::invalid_argument, "selector.p is %g; valid: above 0, to 1",
                                   static_cast<double>(c.p));
        }

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            if (in.score.empty()) return 0;
            const std::span<chosen_unit> best = out.first(best_.choose(in, out));
            if (p_ == 1.0F) return static_cast<std::uint32_t>(best.size());
            std::sort(best.begin(), best.end(), [&](const chosen_unit& a, const chosen_unit& b) {
                return simd::top_k_key<simd::default_arch>(in.score[a.unit], a.unit) >
                       simd::top_k_key<simd::default_arch>(in.score[b.unit], b.unit);
            });
            const detail::lane_mass all = mass_of(in);
            float missing = p_ * all.sum;
            std::uint32_t n = 0;
            while (n < best.size() && missing > 0.0F) {
                const std::uint32_t u = best[n++].unit;
                missing -= static_cast<float>(in.entries(u)) * weight(in.score[u], all.largest);
            }
            return n;
        }

      private:
        static constexpr bool of_weights = requires { requires Reduce::leaves_weights; };

        [[nodiscard]] detail::lane_mass mass_of(const choice_input& in) const noexcept {
            if constexpr (!of_weights) return detail::total_mass(in, scale_);
            detail::lane_mass all;
            for (std::uint32_t u = 0; u < in.units(); ++u)
                all.sum += static_cast<float>(in.entries(u)) * in.score[u];
            return all;
        }
        /// Attention to an entry of a unit, in the measure of lane_mass.
        [[nodiscard]] float weight(float score, float largest) const noexcept {
            return of_weights ? score : std::exp(scale_ * score - largest);
        }

        float scale_ = 1.0F, p_ = 1.0F;
        typename topk<Reduce, Source>::state best_;
    };
};

}} // namespace kvtl::v0
