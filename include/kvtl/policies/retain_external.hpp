// Score: the engine or the model decides. layer_input::external has one number per token and KV head.
//
//   external_scores  larger is better; budgets hold as for any other score
//   external_mask    as external_scores; entries with 0 or less leave even if there is room (Attention-Gate,
//                    Neural Garbage Collection). Pinned entries stay. If no head would keep any entry of a
//                    prompt, the prompt is refused: the mask was never filled
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/simd/convert.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>

namespace kvtl { inline namespace v0 {

template <bool IsMask> struct external_decision : score_defaults {
    static constexpr std::string_view name = IsMask ? "external_mask" : "external_scores";
    static constexpr engine_input needs = engine_input::k | engine_input::external;
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool drops_unwanted = IsMask;
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check_arrival(const layer_input& in, std::size_t) noexcept {
            if (!simd::all_finite(in.external.data(), in.external.size()))
                return status::failure(errc::invalid_argument, "external holds a number that is not finite");
            return {};
        }
        /// Whether a chunk has anything that should stay, in any head.
        [[nodiscard]] static bool wants_any(const layer_input& in) noexcept {
            return std::any_of(in.external.begin(), in.external.end(), wanted);
        }
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = a.external[a.first_head + i * a.head_step];
        }
        [[nodiscard]] static bool wanted(float score) noexcept { return score > 0.0F; }
    };
};

using external_scores = external_decision<false>;
using external_mask = external_decision<true>;

}} // namespace kvtl::v0
