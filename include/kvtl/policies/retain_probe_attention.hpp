// Score: the attention of queries that stand for the future. The engine supplies them with the prompt's last
// chunk (layer_input::probe): pseudo tokens at later positions (DapQ), a trained lookahead (LookaheadKV), a
// patched prompt per episode (EpiCache). Block prefill (probed::every_chunk) evicts after each chunk, by the probe that
// comes with it, so that a prompt is never held as a whole.
//
// What:   softmax of each probe over the whole prompt, reduced over probes and group by mean or maximum,
//         without the attention that the pinned window receives, pooled.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 {

/// When a probe comes, and what is over budget leaves.
enum class probed : std::uint8_t { at_the_end, every_chunk };

template <over How, pooling Pool, std::uint32_t Width, probed When = probed::at_the_end>
struct probe_attention : score_defaults {
    static constexpr std::string_view name =
        When == probed::every_chunk ? "probe_attention_of_chunks" : "probe_attention";
    static constexpr bool evicts_in_prompt = When == probed::every_chunk;
    static constexpr engine_input needs = engine_input::k | engine_input::probe;
    static constexpr score_source source = score_source::probe;
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
            std::fill(sum.begin(), sum.end(), 0.0F);
            const float share = 1.0F / static_cast<float>(lane.group * lane.observed);
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                if constexpr (How == over::mean)
                    simd::axpy(share, p.data(), sum.data(), p.size());
                else
                    for (std::size_t t = 0; t < p.size(); ++t) sum[t] = std::max(sum[t], p[t]);
            });
            strip_window(lane, sum);
            pool_scores<Pool>(sum, this->config_.pool_width, out);
        }
    };
};

}} // namespace kvtl::v0
