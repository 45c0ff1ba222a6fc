// Score: the most that any query of the window, in any head of the group, would lose (DefensiveKV).
//
// What:   probabilities of each observed query, pooled and made to sum to 1 again; the largest over the
//         group and the window, at least the mean over the entries; times the entry's share of the values'
//         size among the layer's heads. Entries that together make up `sure` of the mean attention come
//         first.
// Source: DefensiveKV; window 32, average of 5, 90 %. Deviation: the size of a value is |v|, not |W_o v|,
//         as a cache has no projection.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/evict/budget_split.hpp>
#include <kvtl/evict/retention.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl::inline v0 {

struct worst_case : score_defaults {
    static constexpr std::string_view name = "worst_case";
    static constexpr signal needs = signal::q | signal::k | signal::v;
    static constexpr score_source source = score_source::window;
    static constexpr bool reads_values = true;
    static constexpr std::uint32_t spare_rows = 2;
    struct config {
        std::uint32_t pool_width = 5;
        float sure = 0.9F;
        template <class Visit> void fields(Visit&& visit) {
            visit("pool_width", pool_width);
            visit("sure", sure);
        }
    };
    template <class Geometry> class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (!(c.sure >= 0.0F && c.sure <= 1.0F))
                return status::failure(errc::invalid_argument, "retention.sure is %g; valid: 0 to 1",
                                       static_cast<double>(c.sure));
            return check_pool_width(c.pool_width);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t n = lane.tokens();
            const std::span<float> mean = lane.spare.first(n);
            std::fill(mean.begin(), mean.end(), 0.0F);
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                const std::span<float> pooled = lane.spare.subspan(n, p.size());
                pool_scores<pooling::average>(p, this->config_.pool_width, pooled);
                float sum = 0;
                for (const float x : pooled) sum += x;
                for (std::size_t t = 0; t < p.size(); ++t) {
                    out[t] = std::max(out[t], pooled[t] / sum);
                    mean[t] += pooled[t] / sum;
                }
            });
            const std::uint32_t begin = lane.sinks, end = n - lane.window;
            if (begin == end) return;
            float middle = 0;
            for (std::uint32_t t = begin; t < end; ++t) middle += out[t];
            middle /= static_cast<float>(end - begin);
            float largest = 0;
            for (std::uint32_t t = begin; t < end; ++t) {
                float size = 0;
                for (std::size_t d = 0; d < lane.values.dim; ++d)
                    size += std::fabs(to_float(lane.values.row(t)[d]));
                const float all = lane.value_l1[t];
                out[t] = std::max(out[t], middle) * (all > 0.0F ? size / all : 0.0F);
                largest = std::max(largest, out[t]);
            }
            const float bar = covering(mean.subspan(begin, end - begin), this->config_.sure);
            for (std::uint32_t t = begin; t < end; ++t)
                if (mean[t] >= bar) out[t] += largest;
        }

      private:
        /// The bar that entries with `part` of the sum reach together, as high as possible; inf for part 0.
        static float covering(std::span<const float> x, float part) noexcept {
            if (!(part > 0.0F)) return std::numeric_limits<float>::infinity();
            float all = 0;
            for (const float v : x) all += v;
            std::uint32_t bits = 0; // numbers >= 0 order like their bits
            for (int bit = 30; bit >= 0; --bit) {
                const float bar = std::bit_cast<float>(bits | (1U << bit));
                float sum = 0;
                for (const float v : x) sum += v >= bar ? v : 0.0F;
                if (sum >= part * all) bits |= 1U << bit;
            }
            return std::bit_cast<float>(bits);
        }
    };
};

} // namespace kvtl::inline v0
