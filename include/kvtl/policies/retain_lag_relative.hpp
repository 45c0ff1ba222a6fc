// Score: how much an entry differs, relative to the block that follows its own (LagKV).
//
// What:   after the sinks the prompt is divided into blocks of `lag`. Each number of a block's keys is placed
//         between the minimum and the maximum of the next block in that dimension. An entry's score is the
//         standard deviation of its places, with a softmax over the block; likewise for values. The mean of
//         both ranks it in its block. Ranks are comparable between blocks. The tail, one to two blocks
//         without a next block, comes before all ranks, the latest entry first: a sliding window. A prompt
//         shorter than the sinks and two blocks cannot be ranked, and its latest entries stay.
// Source: LagKV: 4 sinks, lag 128. It keeps a ratio of the ranked entries and the whole tail; here one budget
//         covers both. Deviation: a block has at most a quarter of the entries kept after the sinks. So the
//         tail never takes more than half, and the score decides on the rest. From 516 entries on the lag is
//         the paper's.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>

namespace kvtl { inline namespace v0 {

struct lag_relative : score_defaults {
    static constexpr std::string_view name = "lag_relative";
    static constexpr engine_input needs = engine_input::k | engine_input::v;
    static constexpr score_source source = score_source::keys;
    static constexpr std::uint32_t spare_rows = 3;
    struct config {
        std::uint32_t lag = 128; ///< entries of a block, at most
        template <class Visit> void fields(Visit&& visit) { visit("lag", lag); }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (c.lag < 2)
                return status::failure(errc::invalid_argument, "retention.lag is %u; valid: 2 and more",
                                       c.lag);
            return {};
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t n = lane.tokens(), lag = block_tokens(), blocks = (n - lane.sinks) / lag;
            for (std::uint32_t t = 0; t < n; ++t) out[t] = 1.0F + static_cast<float>(t); // more than any rank
            for (std::uint32_t b = 0; b + 1 < blocks; ++b) {
                const std::size_t first = lane.sinks + std::size_t{b} * lag;
                const std::span<float> sum = lane.spare.first(lag);
                std::fill(sum.begin(), sum.end(), 0.0F);
                add_shares(lane.keys.slice(first, lag), lane.keys.slice(first + lag, lag), lane.spare, sum);
                add_shares(lane.values.slice(first, lag), lane.values.slice(first + lag, lag), lane.spare,
                           sum);
                for (std::uint32_t i = 0; i < lag; ++i) {
                    std::uint32_t rank = 0;
                    for (std::uint32_t j = 0; j < lag; ++j)
                        rank += sum[j] < sum[i] || (j > i && !(sum[i] < sum[j])) ? 1U : 0U;
                    out[first + i] = static_cast<float>(rank) / static_cast<float>(lag);
                }
            }
        }

      private:
        [[nodiscard]] std::uint32_t block_tokens() const noexcept {
            const score_limits& l = this->limits_;
            return std::min(this->config_.lag, std::max(2U, (l.keep - std::min(l.keep, l.sinks)) / 4));
        }
        /// sum[i] += half of the softmax of the deviations. spare: three runs of lag floats, the first of
        /// them `sum`.
        template <element E>
        static void add_shares(rows_view<E> block, rows_view<E> next, std::span<float> spare,
                               std::span<float> sum) noexcept {
            const std::size_t lag = block.count;
            const std::span<float> total = spare.subspan(lag, lag), square = spare.subspan(2 * lag, lag);
            std::fill(total.begin(), total.end(), 0.0F);
            std::fill(square.begin(), square.end(), 0.0F);
            for (std::size_t d = 0; d < block.dim; ++d) {
                float low = to_float(next.row(0)[d]), high = low;
                for (std::size_t i = 1; i < lag; ++i) {
                    low = std::min(low, to_float(next.row(i)[d]));
                    high = std::max(high, to_float(next.row(i)[d]));
                }
                const float share = high > low ? 1.0F / (high - low) : 0.0F;
                for (std::size_t i = 0; i < lag; ++i) {
                    const float x = (to_float(block.row(i)[d]) - low) * share;
                    total[i] += x;
                    square[i] += x * x;
                }
            }
            const auto dim = static_cast<float>(block.dim);
            for (std::size_t i = 0; i < lag; ++i) {
                const float mean = total[i] / dim;
                total[i] = std::sqrt(std::max(0.0F, square[i] / dim - mean * mean));
            }
            const float all = simd::exp_shifted_sum(total.data(), lag, simd::max_of(total.data(), lag));
            simd::axpy(0.5F / all, total.data(), sum.data(), lag);
        }
    };
};

}} // namespace kvtl::v0
