// Score: mean and variance of the attention to an entry, over the last queries of the prompt, continued during decode.
// For the budget: entropy, variance and kurtosis of a layer's attention (ARKV).
//
// What:   at the end of the prompt the score is that of mean_and_variance. Each decoded token then moves the
//         entry's mean and variance of attention by 1 / `memory` of the way, and the part of the score that is
//         from the prompt shrinks by as much. The score is their sum: prompt + mean + gamma * variance. The
//         preference of a layer is H^(1/tau1) * V^(1/tau2) * K^(1/tau3). H and V are those of mean_and_variance.
//         K is the kurtosis of the window's mean attention over the competing entries, averaged over query heads.
// Cost:   12 bytes per entry; a few operations per entry and step.
// Source: ARKV (2026): the original-quantisation ratio of a layer. tau is 7.8, 5.4 and 5.5 in its command line.
//         Deviation: its decode scores by the latest query only; moments over the last `memory` queries have the
//         meaning that the score has at the end of the prompt.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/retain_mean_and_variance.hpp>

#include <cmath>

namespace kvtl { inline namespace v0 {

struct running_moments : mean_and_variance {
    static constexpr std::string_view name = "running_moments";
    static constexpr feedback reads_mass = feedback::full;
    static constexpr bool evicts_in_decode = true;
    struct record {
        float prompt = -1.0F; ///< what is left of the score from the prompt; below 0: not set yet
        float mean = 0, variance = 0;
    };
    struct config : mean_and_variance::config {
        float tau_kurtosis = 1.0F;
        std::uint32_t memory = 32; ///< tokens, 1 and more
        template <class Visit> void fields(Visit&& visit) {
            mean_and_variance::config::fields(visit);
            visit("tau_kurtosis", tau_kurtosis);
            visit("memory", memory);
        }
    };
    class state : public mean_and_variance::state {
        using base = mean_and_variance::state;

      public:
        state() = default;
        state(const config& c, const score_limits& limits, std::span<std::byte> memory) noexcept
            : base(c, limits, memory), share_(1.0F / static_cast<float>(c.memory)),
              tau_kurtosis_(c.tau_kurtosis) {}
        [[nodiscard]] static status check(const config& c, const score_limits& limits) noexcept {
            if (c.memory == 0)
                return status::failure(errc::invalid_argument, "retention.memory is 0; valid: 1 and more");
            if (!(c.tau_kurtosis > 0.0F))
                return status::failure(errc::invalid_argument, "retention.tau_kurtosis is %g; valid: above 0",
                                       static_cast<double>(c.tau_kurtosis));
            return base::check(c, limits);
        }
        void feed(const held_entry&, float mass, float& score, record& r) const noexcept {
            if (r.prompt < 0.0F) r.prompt = score;
            r.prompt *= 1.0F - share_;
            const float away = mass - r.mean;
            r.mean += share_ * away;
            r.variance = (1.0F - share_) * (r.variance + share_ * away * away);
            score = r.prompt + r.mean + this->config_.gamma * r.variance;
        }
        [[nodiscard]] float preference(const layer_notes& notes) const noexcept {
            const double kurtosis = notes.kurtosis / std::max(1U, notes.lanes);
            return base::preference(notes) *
                   static_cast<float>(std::pow(kurtosis, 1.0 / static_cast<double>(tau_kurtosis_)));
        }

      private:
        float share_ = 0, tau_kurtosis_ = 1.0F;
    };
};

}} // namespace kvtl::v0
