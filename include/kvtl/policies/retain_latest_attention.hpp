// Score: the attention of the latest query, averaged over all heads of the layer, which keep the same tokens
// (TOVA). Nothing is remembered: every step ranks anew, and the lowest entry leaves.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

struct latest_attention : score_defaults {
    static constexpr std::string_view name = "latest_attention";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr feedback reads_mass = feedback::full;
    static constexpr score_source source = score_source::window;
    static constexpr bool decides_together = true;
    static constexpr bool evicts_in_decode = true;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            prompt_lane<E> last = lane; // of the window only the last query counts
            last.queries += (lane.observed - 1) * lane.query_stride;
            last.observed = 1;
            const float share = 1.0F / static_cast<float>(lane.group);
            for_each_observed(last, [&](std::uint32_t, std::uint32_t, std::span<const float> p) {
                simd::axpy(share, p.data(), out.data(), p.size());
            });
        }
        void feed(const held_entry&, float mass, float& score, record&) const noexcept { score = mass; }
    };
};

}} // namespace kvtl::v0
