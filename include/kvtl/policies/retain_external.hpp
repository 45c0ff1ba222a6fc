// Score: the engine, or the model itself, decides: layer_input::external has one number per token and KV
// head.
//
//   external_scores  the greater, the better; budgets hold as for any other score
//   external_mask    as well, and what has 0 or less leaves although there would be room (Attention-Gate,
//                    Neural Garbage Collection); pinned entries stay
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/evict/retention.hpp>
#include <kvtl/simd/convert.hpp>

#include <algorithm>

namespace kvtl::inline v0 {

template <bool IsMask> struct external_decision : score_defaults {
    static constexpr std::string_view name = IsMask ? "external_mask" : "external_scores";
    static constexpr signal needs = signal::k | signal::external;
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    static constexpr bool drops_unwanted = IsMask;
    template <class Geometry> class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        [[nodiscard]] static status check_arrival(const layer_input& in, std::size_t tokens) noexcept {
            if (!simd::all_finite(in.external.data(), in.external.size()))
                return status::failure(errc::invalid_argument, "external holds a number that is not finite");
            const bool nothing =
                std::none_of(in.external.begin(), in.external.end(), [](float x) { return x > 0.0F; });
            if (IsMask && tokens > 1 && nothing)
                return status::failure(errc::invalid_argument,
                                       "external keeps nothing of %zu tokens; valid: at least one number > 0",
                                       tokens);
            return {};
        }
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = a.external[a.first_head + i * a.head_step];
        }
        [[nodiscard]] static bool wanted(float score) noexcept { return score > 0.0F; }
        [[nodiscard]] float worth(const held_entry& e, const record&) const noexcept { return e.score; }
        [[nodiscard]] std::uint32_t slack() const noexcept { return 0; }
    };
};

using external_scores = external_decision<false>;
using external_mask = external_decision<true>;

} // namespace kvtl::inline v0
