// Score: attention of the prompt's last queries, minus the similarity to other keys (R-KV).
//
//   score(i)      = lambda * attention(i) - (1 - lambda) * redundancy(i)
//   attention(i)  softmax over the entries before the window of the group's highest logit, mean over the
//                 window's queries, maximum over neighbouring tokens
//   redundancy    softmax over entries of the mean cosine of key i to all keys. Each key j leaves out the latest
//                 other key whose cosine to it exceeds `similar`. So of three or more similar keys, the latest is
//                 the least redundant
//
// Shapes: keys (T, D), scores (T). Spare rows: 2 T. State: D floats.
// Cost:   attention as window_attention, and a search for the latest similar key: T inner products per key at
//         worst, and a few where keys resemble their successors.
// Source: R-KV (Cai et al., 2025): window 8, maximum of 7, similar 0.5; lambda 0.1 in the paper, 0.07 in its
//         code. Deviations: it decides at the end of the prompt; the paper does so every 128 decoded tokens. A
//         key without a similar one leaves out nothing (the code then leaves out the first key).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct redundancy : score_defaults {
    static constexpr std::string_view name = "redundancy";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr score_source source = score_source::window;
    static constexpr std::uint32_t spare_rows = 2;
    struct config {
        float lambda = 0.1F;  ///< part of attention in the score, 0 to 1
        float similar = 0.5F; ///< cosine from which keys say the same
        std::uint32_t pool_width = 7;
        template <class Visit> void fields(Visit&& visit) {
            visit("lambda", lambda);
            visit("similar", similar);
            visit("pool_width", pool_width);
        }
    };
    class state : public score_hooks {
      public:
        state() = default;
        state(const config& c, const score_limits& limits, std::span<std::byte> memory) noexcept
            : config_(c) {
            carver carve(memory);
            key_ = carve.take<float>(limits.dim);
        }
        [[nodiscard]] static std::size_t bytes(const config&, const score_limits& limits) noexcept {
            return limits.dim * sizeof(float);
        }
        [[nodiscard]] static status check(const config& c, const score_limits&) noexcept {
            if (!(c.lambda >= 0.0F && c.lambda <= 1.0F))
                return status::failure(errc::invalid_argument, "retention.lambda is %g; valid: 0 to 1",
                                       static_cast<double>(c.lambda));
            if (!(c.similar >= 0.0F && c.similar <= 1.0F))
                return status::failure(errc::invalid_argument, "retention.similar is %g; valid: 0 to 1",
                                       static_cast<double>(c.similar));
            return check_pool_width(c.pool_width);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t tokens = lane.tokens(), before = tokens - lane.window;
            if (before == 0) return;
            redundancy_of(lane, out);
            const std::span<float> paid = lane.spare.first(before),
                                   pooled = lane.spare.subspan(tokens, before);
            attention_of(lane, paid);
            pool_scores<pooling::maximum>(paid, config_.pool_width, pooled);
            simd::scale(config_.lambda - 1.0F, out.data(), before);
            simd::axpy(config_.lambda, pooled.data(), out.data(), before);
        }

      private:
        config config_{};
        std::span<float> key_; ///< (D) scratch: a key, or the mean direction

        /// Attention that the window's queries pay to entries before it, paid (T - window).
        template <element E>
        static void attention_of(const prompt_lane<E>& lane, std::span<float> paid) noexcept {
            const std::size_t n = paid.size();
            std::fill(paid.begin(), paid.end(), 0.0F);
            for (std::uint32_t w = 0; w < lane.observed; ++w) {
                float* const logit = lane.logits.data();
                simd::dot_group(lane.queries + w * lane.query_stride, lane.group, lane.keys.dim,
                                lane.keys.slice(0, n), logit, n);
                for (std::uint32_t g = 1; g < lane.group; ++g)
                    for (std::size_t t = 0; t < n; ++t) logit[t] = std::max(logit[t], logit[g * n + t]);
                to_logits(lane.logit, logit, n);
                const float sum = simd::exp_shifted_sum(logit, n, simd::max_of(logit, n));
                simd::axpy(1.0F / (sum * static_cast<float>(lane.observed)), logit, paid.data(), n);
            }
        }
        /// out (T): softmax of mean cosines.
        template <element E>
        void redundancy_of(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::uint32_t tokens = lane.tokens();
            const std::size_t dim = lane.keys.dim;
            const std::span<float> inverse = lane.spare.first(tokens); // of lengths
            const std::span<float> mean = key_.first(dim);
            std::fill(mean.begin(), mean.end(), 0.0F);
            for (std::uint32_t t = 0; t < tokens; ++t) {
                float square = 0;
                for (std::size_t d = 0; d < dim; ++d) {
                    const float x = to_float(lane.keys.row(t)[d]);
                    square += x * x;
                }
                inverse[t] = 1.0F / std::max(std::sqrt(square), 1e-30F);
                simd::axpy(inverse[t], lane.keys.row(t), mean.data(), dim);
            }
            for (std::uint32_t t = 0; t < tokens; ++t) { // without its cosine to itself
                const float all = simd::dot(mean.data(), lane.keys.row(t), dim) * inverse[t];
                out[t] = all - 1.0F;
            }
            for (std::uint32_t j = 0; j < tokens; ++j) {
                simd::decode(lane.keys.row(j), key_.data(), dim);
                for (std::uint32_t i = tokens; i-- > 0;) {
                    if (i == j) continue;
                    const float cosine =
                        simd::dot(key_.data(), lane.keys.row(i), dim) * inverse[i] * inverse[j];
                    if (!(cosine > config_.similar)) continue;
                    out[i] -= cosine;
                    break;
                }
            }
            const float share = 1.0F / static_cast<float>(tokens);
            const float sum =
                simd::exp_shifted_sum(out.data(), tokens, simd::max_of(out.data(), tokens), share);
            simd::scale(1.0F / sum, out.data(), tokens);
        }
    };
};

}} // namespace kvtl::v0
