// Score: the attention weight that a key is expected to have for future queries, times the length of its value
// (Expected Attention).
//
//   logit of query head g   l_g = mean over w of q_w . k * scale + 1/2 variance over w of q_w . k * scale
//   score                   mean over g of softmax over entries (l_g), times |v|
//
// What:   the prompt's last W queries are a sample of the queries to come. If these were normal, exp(l_g) would
//         be the expected weight of the key. The variance of the sample's logits is k' Sigma k for the full
//         covariance Sigma of the sample, which is never computed.
// Shapes: queries (W, G, D), W = window; scores (T). Spare rows: 2 T.
// Cost:   as window_attention: G W inner products per key.
// Source: Expected Attention (Devoto et al., 2025; NVIDIA KVPress). Deviations: the statistics cover the
//         W latest queries at their own positions. The paper takes all queries of the prompt before RoPE, and
//         averages RoPE over the next 512 positions. The paper's text has |W_o v|. Its code has |v|, as here, and
//         adds a constant to the weight, which this score does not.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct expected_weight : score_defaults {
    static constexpr std::string_view name = "expected_weight";
    static constexpr engine_input needs = engine_input::q | engine_input::k | engine_input::v;
    static constexpr score_source source = score_source::window;
    static constexpr std::uint32_t spare_rows = 2;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t begin = lane.sinks, n = lane.tokens() - lane.window - begin;
            if (n == 0 || lane.observed == 0) return;
            const rows_view<E> keys = lane.keys.slice(begin, n);
            const std::span<float> logit = lane.logits.first(n), mean = lane.spare.first(n),
                                   spread = lane.spare.subspan(lane.tokens(), n), sum = out.subspan(begin, n);
            for (std::uint32_t g = 0; g < lane.group; ++g) {
                std::fill(mean.begin(), mean.end(), 0.0F);
                std::fill(spread.begin(), spread.end(), 0.0F);
                for (std::uint32_t w = 0; w < lane.observed; ++w) {
                    simd::dot_rows(lane.queries + w * lane.query_stride + std::size_t{g} * keys.dim, keys,
                                   logit.data());
                    to_logits(lane.logit, logit.data(), n);
                    const float share = 1.0F / static_cast<float>(w + 1);
                    for (std::uint32_t t = 0; t < n; ++t) { // Welford: no difference of large squares
                        const float away = logit[t] - mean[t];
                        mean[t] += share * away;
                        spread[t] += away * (logit[t] - mean[t]);
                    }
                }
                simd::axpy(0.5F / static_cast<float>(lane.observed), spread.data(), mean.data(), n);
                const float all = simd::exp_shifted_sum(mean.data(), n, simd::max_of(mean.data(), n));
                simd::axpy(1.0F / (all * static_cast<float>(lane.group)), mean.data(), sum.data(), n);
            }
            for (std::uint32_t t = 0; t < n; ++t)
                sum[t] *= length(lane.values.row(begin + t), lane.values.dim);
        }

      private:
        template <element E> static float length(const E* v, std::size_t dim) noexcept {
            float square = 0;
            for (std::size_t d = 0; d < dim; ++d) square += to_float(v[d]) * to_float(v[d]);
            return std::sqrt(square);
        }
    };
};

}} // namespace kvtl::v0
