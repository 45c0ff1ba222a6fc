// Score: the mean attention of the window to an entry, and its variance (CAKE). For the budget: how widely a layer
// attends, and how much that changes (CAKE).
//
// What:   per query head, mean + gamma * variance over the window, pooled over neighbours; mean over the
//         group. The preference of a layer is H^(1/tau1) * V^(1/tau2). H = -sum p ln p of every query of the
//         window (p is not normalised again); V is the sum of the variances over entries. Each covers the
//         competing entries and is averaged over queries and query heads. CAKE sums instead; layers get equal
//         shares with either. The kurtosis of the window's mean attention is noted too, for running_moments.
// Cost:   a logarithm per observed query and competing entry.
// Source: CAKE; gamma 200 is the default of its command line. It tunes tau (0.4 to 2.3) per model; here tau
//         is 1. Variances are those of the window itself (no sample correction).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

struct mean_and_variance : score_defaults {
    static constexpr std::string_view name = "mean_and_variance";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr score_source source = score_source::window;
    static constexpr std::uint32_t spare_rows = 3;
    struct config {
        float gamma = 200.0F;
        std::uint32_t pool_width = 5;
        float tau_entropy = 1.0F, tau_variance = 1.0F;
        template <class Visit> void fields(Visit&& visit) {
            visit("gamma", gamma);
            visit("pool_width", pool_width);
            visit("tau_entropy", tau_entropy);
            visit("tau_variance", tau_variance);
        }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (!(c.gamma >= 0.0F && c.gamma < 1e9F))
                return status::failure(errc::invalid_argument, "retention.gamma is %g; valid: 0 and more",
                                       static_cast<double>(c.gamma));
            if (!(c.tau_entropy > 0.0F && c.tau_variance > 0.0F))
                return status::failure(errc::invalid_argument,
                                       "retention.tau_entropy and tau_variance are %g and %g; valid: above 0",
                                       static_cast<double>(c.tau_entropy),
                                       static_cast<double>(c.tau_variance));
            return check_pool_width(c.pool_width);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t n = lane.tokens();
            const std::span<float> mean = lane.spare.first(n), square = lane.spare.subspan(n, n),
                                   pooled = lane.spare.subspan(std::size_t{2} * n, n);
            const float share = 1.0F / static_cast<float>(lane.group);
            for (std::uint32_t g = 0; g < lane.group; ++g) { // a variance belongs to one query head
                prompt_lane<E> one = lane;
                one.queries += g * lane.keys.dim;
                one.group = 1;
                std::fill(mean.begin(), mean.end(), 0.0F);
                std::fill(square.begin(), square.end(), 0.0F);
                const float queries = 1.0F / static_cast<float>(lane.observed);
                for_each_observed(one, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                    for (std::size_t t = 0; t < p.size(); ++t) {
                        mean[t] += p[t];
                        square[t] += p[t] * p[t];
                    }
                    lane.notes->entropy += static_cast<double>(share * queries) * entropy(lane, p);
                });
                for (std::uint32_t t = 0; t < n; ++t) {
                    mean[t] *= queries;
                    square[t] = std::max(0.0F, square[t] * queries - mean[t] * mean[t]);
                }
                for (std::uint32_t t = lane.sinks; t < n - lane.window; ++t)
                    lane.notes->variance += static_cast<double>(share * square[t]);
                lane.notes->kurtosis += static_cast<double>(share) * kurtosis(lane, mean);
                for (std::uint32_t t = 0; t < n; ++t) mean[t] += this->config_.gamma * square[t];
                strip_window(lane, mean);
                pool_scores<pooling::average>(mean, this->config_.pool_width, pooled);
                simd::axpy(share, pooled.data(), out.data(), n);
            }
        }
        [[nodiscard]] float preference(const layer_notes& notes) const noexcept {
            const double lanes = std::max(1U, notes.lanes);
            const auto part = [lanes](double sum, float tau) {
                return std::pow(sum / lanes, 1.0 / static_cast<double>(tau));
            };
            return static_cast<float>(part(notes.entropy, this->config_.tau_entropy) *
                                      part(notes.variance, this->config_.tau_variance));
        }

      private:
        /// Fourth moment of the window's mean attention over the competing entries, divided by the square of the
        /// second; 0 where nothing varies.
        template <element E>
        [[nodiscard]] static double kurtosis(const prompt_lane<E>& lane,
                                             std::span<const float> mean) noexcept {
            const auto some = mean.subspan(lane.sinks, lane.tokens() - lane.sinks - lane.window);
            double centre = 0, second = 0, fourth = 0;
            for (const float x : some) centre += static_cast<double>(x) / static_cast<double>(some.size());
            for (const float x : some) {
                const double square = (static_cast<double>(x) - centre) * (static_cast<double>(x) - centre);
                second += square, fourth += square * square;
            }
            return second > 0.0 ? fourth * static_cast<double>(some.size()) / (second * second) : 0.0;
        }
        /// Of one query over the competing entries.
        template <element E>
        [[nodiscard]] static double entropy(const prompt_lane<E>& lane, std::span<const float> p) noexcept {
            double sum = 0;
            for (std::uint32_t t = lane.sinks; t < lane.tokens() - lane.window; ++t)
                if (p[t] > 0.0F) sum -= static_cast<double>(p[t] * std::log(p[t]));
            return sum;
        }
    };
};

}} // namespace kvtl::v0
