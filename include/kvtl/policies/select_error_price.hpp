// Selector: the units for which the error of an estimate is worth more than the cost of reading them.
//
//   attend unit u  if  error(u) entries(u) / |o|^2 > lambda cost(u)
//
// error(u): expected squared error of the output per entry of the unit, as the estimator says
// (estimate_centroid.hpp). o: the layer's output at its last step. lambda: one price for all heads, layers
// and steps of a sequence. So a head reads as much as it needs, while a budget per head would give each head the
// same amount. cost(u), in entries:
//
//   resident       resident_share entries(u): nothing is read, only computed
//   not resident   the entries for which its pages have room: a page is read whole, however few entries it has
//
// So among equally good units, those in memory and those that fill their pages are chosen first.
// attend_tokens is the mean of attended entries over heads, layers and steps: after each token
//
//   log lambda += rate * (entries chosen / entries allowed - 1)
//
// One head may choose up to four times its budget in a step. The first token chooses within the budget of each
// head. The worst unit that it read in each head sets lambda.
//
// Bytes: 20 per layer and sequence, and two outputs of the layer in floats: what is in memory, and the estimate.
// Cost:  one pass over U scores. The place of a unit is looked up only if its error may be worth the lower of the two
//        costs. Top-k only if a head exceeds its limit. A prefetch attends what is in memory, too.
// Limits: lambda follows what was read, so outputs depend on earlier steps. A rewind does not restore lambda. Several
//         tokens in one call of attend() have one price, so their outputs differ slightly from those of single calls.
//         Outputs also depend on which units are resident, and so on memory_bytes and on what a prefetch has evicted. A
//         unit that a prefetch reads counts as not resident. If layers share a cache, lambda follows the last of them.
// Source: no paper; rate-distortion allocation with one Lagrange multiplier (H. Everett, Operations Research
//         11 (1963)).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/select_topk.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct error_price {
    static constexpr std::string_view name = "error_price";
    static constexpr engine_input needs = engine_input::q;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    static constexpr bool by_errors = true;
    static constexpr std::uint32_t most_of_budget = 4;
    struct config {
        float rate = 0.15F;           ///< how fast the price follows what was read, per token
        float resident_share = 0.05F; ///< price of a resident entry, in prices of one that is read
        template <class Visit> void fields(Visit&& visit) {
            visit("rate", rate);
            visit("resident_share", resident_share);
        }
    };
    /// The last step of a layer.
    struct step_notes {
        float output = 0;            ///< squared length of its output
        float marginal = 0;          ///< mean log of the lowest score chosen
        std::uint32_t marginals = 0; ///< lanes in that mean
        std::uint32_t entries = 0, budget = 0;
    };

    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : rate_(c.rate), resident_(c.resident_share) {}
        [[nodiscard]] static status check(const config& c) noexcept {
            if (!(c.rate > 0.0F && c.rate <= 1.0F))
                return status::failure(errc::invalid_argument, "selector.rate is %g; valid: above 0, to 1",
                                       static_cast<double>(c.rate));
            if (!(c.resident_share > 0.0F && c.resident_share <= 1.0F))
                return status::failure(errc::invalid_argument,
                                       "selector.resident_share is %g; valid: above 0, to 1",
                                       static_cast<double>(c.resident_share));
            return {};
        }

        /// Factor on the error per entry of a unit of so many entries: entries / price in entries. `fetched`: entries for
        /// which the pages that would be read have room; 0: the unit is resident.
        [[nodiscard]] float worth(std::uint32_t entries, std::uint32_t fetched) const noexcept {
            if (fetched == 0) return 1.0F / resident_;
            return static_cast<float>(entries) / static_cast<float>(fetched);
        }

        /// No worth() of a unit of at most so many entries is above this.
        [[nodiscard]] float most_worth(std::uint32_t entries) const noexcept {
            return std::max(1.0F / resident_, static_cast<float>(entries));
        }
        /// A unit whose error times its worth is not above this is not chosen; negative before the first price.
        [[nodiscard]] static float least_worth(const choice_input& in) noexcept {
            return std::isfinite(in.bar) && in.output > 0.0F ? std::exp(in.bar) * in.output : -1.0F;
        }

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            const float least = least_worth(in);
            if (least < 0.0F) return best_.choose(in, out);
            const std::uint32_t most = most_of_budget * in.budget;
            std::uint32_t n = 0, entries = 0;
            for (std::uint32_t u = 0; u < in.units(); ++u) {
                if (!(in.score[u] > least) || in.entries(u) == 0) continue;
                entries += in.entries(u);
                if (entries > most || n == out.size()) return best_of(in, most, least, out);
                out[n++] = {.unit = u};
            }
            return n;
        }

        static void note_step(const step_facts& facts, step_notes& notes) noexcept {
            notes.output = facts.output;
            notes.marginals = facts.marginals;
            notes.marginal =
                facts.marginals == 0 ? 0.0F : static_cast<float>(facts.log_marginal / facts.marginals);
            notes.entries = static_cast<std::uint32_t>(facts.entries);
            notes.budget = static_cast<std::uint32_t>(facts.budget);
        }
        /// The next price, from the token's notes of all layers.
        [[nodiscard]] float settle(std::span<const step_notes> layers, float price) const noexcept {
            double entries = 0, budget = 0, marginal = 0;
            std::uint32_t lanes = 0;
            for (const step_notes& layer : layers) {
                entries += layer.entries;
                budget += layer.budget;
                if (layer.marginals == 0 || !(layer.output > 0.0F)) continue;
                marginal += layer.marginals * (double{layer.marginal} - std::log(double{layer.output}));
                lanes += layer.marginals;
            }
            if (!std::isfinite(price)) return lanes == 0 ? price : static_cast<float>(marginal / lanes);
            if (!(budget > 0)) return price;
            const double over = entries / budget - 1.0; // in the mean 0: the budget is met
            return std::clamp(price + rate_ * static_cast<float>(over), least_log, largest_log);
        }

      private:
        static constexpr float least_log = -20.0F, largest_log = 5.0F; ///< from where it soon finds back

        [[nodiscard]] std::uint32_t best_of(choice_input in, std::uint32_t most, float least,
                                            std::span<chosen_unit> out) const noexcept {
            in.budget = most;
            return keep_above(least, in.score, out.first(best_.choose(in, out)));
        }

        float rate_ = 0.15F, resident_ = 1.0F;
        topk<reduce::group_mean>::state best_;
    };
};

}} // namespace kvtl::v0
