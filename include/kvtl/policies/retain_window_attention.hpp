// Score: the attention that an entry gets from the last queries of the prompt (SnapKV).
//
// What:   softmax of each observed query over the entries that it sees, summed over the window, reduced over
//         the query group, without the attention within the window, and pooled over neighbouring tokens so
//         that whole phrases survive. Published variants differ only in the parameters, so these are template
//         arguments. With `PerQueryHead` nothing is reduced, and every query head keeps its own entries (with
//         four times the memory at G = 4).
// Source: SnapKV (per query head, average of 5), DynamicKV (group mean, average of 7), Ada-KV (maximum of 7).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <over Group, pooling Pool, std::uint32_t Width, bool PerQueryHead = false>
struct window_attention : score_defaults {
    static constexpr std::string_view name = "window_attention";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr score_source source = score_source::window;
    static constexpr bool per_query_head = PerQueryHead;
    static constexpr std::uint32_t spare_rows = 1;
    struct config {
        std::uint32_t pool_width = Width;
        template <class Visit> void fields(Visit&& visit) { visit("pool_width", pool_width); }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            return check_pool_width(c.pool_width);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::span<float> sum = lane.spare.first(lane.tokens());
            if constexpr (Group == over::mean) {
                std::fill(sum.begin(), sum.end(), 0.0F);
                const float share = 1.0F / static_cast<float>(lane.group);
                for_each_observed(lane, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                    simd::axpy(share, p.data(), sum.data(), p.size());
                });
            } else {
                sum_of_maxima(lane, sum, out);
            }
            strip_window(lane, sum);
            pool_scores<Pool>(sum, this->config_.pool_width, out);
        }

      private:
        /// The largest share that a head of the group pays, summed over the window.
        template <element E>
        static void sum_of_maxima(const prompt_lane<E>& lane, std::span<float> sum,
                                  std::span<float> largest) noexcept {
            std::fill(sum.begin(), sum.end(), 0.0F);
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t g, std::span<const float> p) {
                for (std::size_t t = 0; t < p.size(); ++t)
                    largest[t] = g == 0 ? p[t] : std::max(largest[t], p[t]);
                if (g + 1 == lane.group) simd::add(largest.data(), sum.data(), p.size());
            });
        }
    };
};

}} // namespace kvtl::v0
