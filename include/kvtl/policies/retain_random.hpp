// Score: a random number for each entry. Every other score must beat it.
//
//   random_score         every entry may leave
//   random_after_prompt  entries of the first prompt are better than all others, so decoded entries leave, at
//                        random per head, as long as there are any (Random Attention, 2026, for reasoning)
//
// Limits: further turns count as decoded. If the prompt exceeds the budget, a random part of it stays.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

namespace kvtl { inline namespace v0 {

template <bool PromptStays> struct random_score_of : score_defaults {
    static constexpr std::string_view name = PromptStays ? "random_after_prompt" : "random";
    static constexpr score_source source = score_source::arrival;
    static constexpr bool evicts_in_decode = true;
    struct config {
        std::uint64_t seed = 1;
        template <class Visit> void fields(Visit&& visit) { visit("seed", seed); }
    };
    class state : public score_state<config> {
      public:
        using score_state<config>::score_state;
        void arrive(const arriving& a, std::span<float> out) const noexcept {
            for (std::size_t i = 0; i < out.size(); ++i) {
                const std::uint64_t head = a.first_head + i * a.head_step;
                out[i] = draw(this->config_.seed, (std::uint64_t{a.layer} << 48) ^ (head << 32) ^ a.token);
                if (PromptStays && !a.decoded) out[i] += 1.0F;
            }
        }

        /// In [0, 1), the same for the same numbers (two rounds of a multiply-xorshift mix).
        [[nodiscard]] static float draw(std::uint64_t seed, std::uint64_t entry) noexcept {
            std::uint64_t x = (entry + 1) * 0x9E3779B97F4A7C15U + seed * 0xD1B54A32D192ED03U;
            for (int round = 0; round < 2; ++round) {
                x ^= x >> 32;
                x *= 0xD6E8FEB86659FD93U;
            }
            return static_cast<float>((x ^ (x >> 32)) >> 40) * 0x1p-24F;
        }
    };
};

using random_score = random_score_of<false>;
using random_after_prompt = random_score_of<true>;

}} // namespace kvtl::v0
