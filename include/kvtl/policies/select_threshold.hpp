// Selector: every unit whose expected share of the attention exceeds a threshold (Squeezed Attention), within
// the budget.
//
//   share(unit i) = exp(s_i) / mean over units j of exp(s_j), weighted by their entries N_j, > threshold
//   s = logit_scale * score
//
// The share is that of one entry at the unit's centroid, so it does not depend on the size of the unit. It is
// relative to the mean entry. For a context of constant length, this is the paper's rule. In a growing
// context, shares of the whole would shrink, and fewer and fewer units would pass. One threshold serves all
// layers and heads, so those with spread attention take more. It is found when a prompt ends: for the
// prompt's last queries (sequence_bars: 100 per lane) it passes, on average, `kept` of the entries
// that top-k would take. Without a prompt everything passes.
//
// Source: "Squeezed Attention". Deviations: the budget bounds the entries that pass; the paper has only an
//         average. The threshold is read from a histogram with 8 bins per octave and linear interpolation.
// Cost:   as top-k, and an exponential per unit. A kilobyte per layer and sequence.
// Limits: the reduction must leave logits (group_mean, group_max, none). In lanes of several KV heads scores
//         are sums over `heads`, and the rule uses their mean. All heads of a sequence belong to one shard.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>
#include <kvtl/policies/support/unit_mass.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Reduce, query Source = query::current> struct threshold {
    static constexpr std::string_view name = "threshold";
    static constexpr engine_input needs = engine_input::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = true;
    static constexpr query source = Source;
    using reduction = Reduce;
    struct config {
        float kept = 0.5F;       ///< mean part of what top-k would take; 1: no threshold
        std::uint32_t heads = 1; ///< KV heads per lane; 0: all, for presets with lanes of a whole layer
        template <class Visit> void fields(Visit&& visit) { visit("kept", kept); }
    };
    /// Of one layer's prompt: entries of what top-k took, by the log of their share, in steps of an eighth of an octave down
    /// from 2^20; the last bin has all below 2^-12.
    struct prompt_notes {
        static constexpr std::uint32_t bins = 256;
        std::array<std::uint32_t, bins> entries{};
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry& g) noexcept
            : scale_(g.logit_scale() / static_cast<float>(c.heads != 0 ? c.heads : g.kv_heads())),
              kept_(c.kept) {}
        [[nodiscard]] static status check(const config& c) noexcept {
            if (c.kept >= 0.0F && c.kept <= 1.0F) return {};
            return status::failure(errc::invalid_argument, "selector.kept is %g; valid: 0 to 1",
                                   static_cast<double>(c.kept));
        }

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            if (in.score.empty()) return 0;
            const float bar = (in.bar + log_mean(in)) / scale_;
            return keep_above(bar, in.score, out.first(best_.choose(in, out)));
        }

        /// What top-k takes for one query of a prompt.
        void note(const choice_input& in, std::span<chosen_unit> spare, prompt_notes& notes) const noexcept {
            if (in.score.empty()) return;
            const std::uint32_t n = best_.choose(in, spare);
            const float mean = log_mean(in);
            for (const chosen_unit& c : spare.first(n)) {
                const float bin = (largest_share - (in.score[c.unit] * scale_ - mean)) * bins_per_nat;
                const auto last = static_cast<float>(prompt_notes::bins - 1);
                notes.entries[static_cast<std::size_t>(std::clamp(bin, 0.0F, last))] += in.entries(c.unit);
            }
        }
        /// The log of the share that `kept` of all noted entries exceed.
        [[nodiscard]] float settle(std::span<const prompt_notes> layers) const noexcept {
            std::array<double, prompt_notes::bins> entries{};
            double all = 0;
            for (const prompt_notes& layer : layers)
                for (std::uint32_t b = 0; b < prompt_notes::bins; ++b) {
                    entries[b] += layer.entries[b];
                    all += layer.entries[b];
                }
            const double want = static_cast<double>(kept_) * all;
            double above = 0;
            for (std::uint32_t b = 0; b < prompt_notes::bins && want < all; ++b) {
                if (above + entries[b] > want)
                    return largest_share -
                           (static_cast<float>(b) + static_cast<float>((want - above) / entries[b])) /
                               bins_per_nat;
                above += entries[b];
            }
            return -std::numeric_limits<float>::infinity();
        }

      private:
        static constexpr float nats_per_octave = 0.69314718F, bins_per_nat = 8 / nats_per_octave,
                               largest_share = 20 * nats_per_octave;

        /// log of the mean over all entries of exp(logit of the entry's unit)
        [[nodiscard]] float log_mean(const choice_input& in) const noexcept {
            const detail::lane_mass all = detail::total_mass(in, scale_);
            return all.largest + std::log(all.sum / all.entries);
        }

        float scale_ = 1.0F, kept_ = 1.0F;
        typename topk<Reduce, Source>::state best_;
    };
};

}} // namespace kvtl::v0
