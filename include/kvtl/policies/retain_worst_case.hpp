// Score: the largest loss of any query of the window, in any head of the group (DefensiveKV). Its controls
// differ only in how they aggregate losses.
//
//   worst_case  the largest over group and window
//   group_loss  the largest over the group, mean over the window
//   mean_loss   the mean over both
//
// What:   the attention of each observed query to the competing entries, pooled so that its sum stays; the
//         largest over the group and the window, and at least the mean over the entries; times the entry's
//         share of the values' size among the layer's heads, token by token. Some entries come before all
//         others: those that the mean attention needs first, until they and the pinned entries (sinks and
//         window) make up `sure` of it. Their number is at most the mean number of entries that a head keeps.
// Size:   of a value, |W_o v|: its size after its head's part of the output projection, root mean square over
//         the query heads that share it, from section value_norms of the calibration file. Without this
//         section, sum |v|. D^2 multiply-adds per value, twice.
// Source: DefensiveKV; window 32, average of 5, 90 %. Deviations: its |W_o v| is a sum of absolute values,
//         mean over the heads, which needs M numbers per value instead of D. Its code takes the attention of
//         the window off the 90 %, but reads it from the wrong columns. Entries that come first keep the
//         order of their scores; its code makes them equal.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/policies/support/value_size.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <numeric>

namespace kvtl { inline namespace v0 {

template <over Group, over Window> struct value_loss : score_defaults {
    static_assert(Group == over::max || Window == over::mean, "the mean over the group of largest losses");
    static constexpr std::string_view name = Window == over::max  ? "worst_case"
                                             : Group == over::max ? "group_loss"
                                                                  : "mean_loss";
    static constexpr engine_input needs = engine_input::q | engine_input::k | engine_input::v;
    static constexpr score_source source = score_source::window;
    static constexpr calibration_kind calibrated = calibration_kind::value_norms; ///< optional
    static constexpr bool reads_values = true;
    static constexpr bool group_first = Group != Window; ///< a row for the group before the window's
    static constexpr std::uint32_t spare_rows = group_first ? 3 : 2;
    struct config {
        std::uint32_t pool_width = 5;
        float sure = 0.9F;
        template <class Visit> void fields(Visit&& visit) {
            visit("pool_width", pool_width);
            visit("sure", sure);
        }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (!(c.sure >= 0.0F && c.sure <= 1.0F))
                return status::failure(errc::invalid_argument, "retention.sure is %g; valid: 0 to 1",
                                       static_cast<double>(c.sure));
            return check_pool_width(c.pool_width);
        }
        /// A file without the section changes nothing.
        void bind(const calibration_view& file) noexcept { calibration_ = file; }
        template <element E>
        [[nodiscard]] float value_size(std::uint32_t layer, std::uint32_t head, const E* v,
                                       std::size_t dim) const noexcept {
            return value_size_of(calibration_, layer, head, v, dim);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t n = lane.tokens(), begin = lane.sinks, end = n - lane.window;
            if (begin == end) return;
            const std::uint32_t competing = end - begin;
            const std::span<float> worst = out.subspan(begin, competing), mean = lane.spare.first(competing),
                                   pooled = lane.spare.subspan(n, competing);
            const std::span<float> of_group = group_first ? lane.spare.subspan(2 * n, competing) : worst;
            std::fill(mean.begin(), mean.end(), 0.0F);
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t g, std::span<const float> all) {
                const std::span<const float> p = all.subspan(begin, competing);
                pool_scores<pooling::average>(p, this->config_.pool_width, pooled);
                const float before = total(p), after = total(pooled);
                const float keeps = after > 0.0F ? before / after : 0.0F; // ends of the row lose a part
                if (group_first && g == 0) std::fill(of_group.begin(), of_group.end(), 0.0F);
                for (std::uint32_t i = 0; i < competing; ++i) {
                    const float loss = pooled[i] * keeps;
                    of_group[i] = Group == over::max ? std::max(of_group[i], loss) : of_group[i] + loss;
                    mean[i] += p[i];
                }
                if (group_first && g + 1 == lane.group) simd::add(of_group.data(), worst.data(), competing);
            });
            if constexpr (Window == over::mean)
                simd::scale(1.0F / static_cast<float>(lane.observed * (group_first ? 1 : lane.group)),
                            worst.data(), competing);
            const float least = total(worst) / static_cast<float>(competing);
            for (std::uint32_t i = 0; i < competing; ++i) {
                const float size =
                    value_size(lane.layer, lane.head, lane.values.row(begin + i), lane.values.dim);
                const float all = lane.value_sizes[begin + i];
                worst[i] = std::max(worst[i], least) * (all > 0.0F ? size / all : 0.0F);
            }
            // Every query pays 1 in all: what the prefix does not get, the pinned entries have.
            const float paid = static_cast<float>(lane.observed * lane.group), prefix = total(mean);
            const float needed = this->config_.sure * paid - (paid - prefix);
            const float bar = covering(mean, prefix > 0.0F ? needed / prefix : 0.0F);
            score_threshold most =
                rank_threshold(this->limits_.keep - lane.sinks - lane.window, [&](auto&& f) {
                    for (const float x : mean) f(x);
                });
            for (std::uint32_t i = 0; i < competing; ++i)
                if (most.passes(mean[i]) && mean[i] >= bar) worst[i] *= first;
        }

      private:
        /// Puts a score above all others, in whatever head or layer: these are below 2, and hardly one is
        /// less than 1e-12. A power of two, so that order among those that come first is kept.
        static constexpr float first = 1099511627776.0F;
        calibration_view calibration_;

        [[nodiscard]] static float total(std::span<const float> x) noexcept {
            return std::accumulate(x.begin(), x.end(), 0.0F);
        }
        /// The bar that entries with `part` of the sum reach together, as high as possible; inf for part 0.
        static float covering(std::span<const float> x, float part) noexcept {
            if (!(part > 0.0F)) return std::numeric_limits<float>::infinity();
            const float all = total(x);
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

using worst_case = value_loss<over::max, over::max>;
using group_loss = value_loss<over::max, over::mean>;
using mean_loss = value_loss<over::mean, over::mean>;

}} // namespace kvtl::v0
