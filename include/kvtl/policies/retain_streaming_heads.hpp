// Score: KV heads that retrieve keep their entries before all others, and of the other heads the latest entries
// stay (DuoAttention).
//
//   score(t) = (t + 1) / T, and 1 more in heads that retrieve
//
// What:   under a budget for which the heads of all layers compete (progressive_heads), heads that retrieve are
//         kept whole as long as the budget allows. The rest of the budget goes to sinks and latest entries of
//         the others, equally many in each.
// Source: DuoAttention (Xiao et al., ICLR 2025): 64 sinks and 256 recent entries in streaming heads. Deviations:
//         it decides at the end of the prompt, and entries from decode stay in every head. The table comes
//         from votes (kvtl-calibrate --votes), not from trained gates. A KV head retrieves if one of its
//         query heads votes. Without a table all heads retrieve. The table is copied.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

struct streaming_heads : score_defaults {
    static constexpr std::string_view name = "streaming_heads";
    static constexpr score_source source = score_source::keys;
    struct config {
        std::vector<std::uint8_t> votes{}; ///< (L, HQ), not 0 where a head retrieves
        template <class Visit> void fields(Visit&&) {}
        template <class Visit> void tables(Visit&& visit) const { visit("votes", votes); }
    };
    class state : public score_hooks {
      public:
        state() = default;
        state(const config& c, const score_limits& l, std::span<std::byte> memory) noexcept
            : heads_(l.kv_heads) {
            carver carve(memory);
            retrieves_ = carve.take<std::uint8_t>(std::size_t{l.layers} * heads_);
            std::fill(retrieves_.begin(), retrieves_.end(), std::uint8_t{c.votes.empty()});
            for (std::size_t i = 0; i < c.votes.size(); ++i)
                if (c.votes[i] != 0) retrieves_[i / l.group] = 1;
        }
        [[nodiscard]] static std::size_t bytes(const config&, const score_limits& l) noexcept {
            return std::size_t{l.layers} * l.kv_heads;
        }
        [[nodiscard]] static status check(const config& c, const score_limits& l) noexcept {
            const std::size_t heads = std::size_t{l.layers} * l.kv_heads * l.group;
            if (!c.votes.empty() && c.votes.size() != heads)
                return status::failure(
                    errc::invalid_argument,
                    "retention.votes has %zu entries; valid: layers * query_heads = %zu, or none",
                    c.votes.size(), heads);
            return {};
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const float first = retrieves_[std::size_t{lane.layer} * heads_ + lane.head] != 0 ? 1.0F : 0.0F;
            const float tokens = static_cast<float>(lane.tokens());
            for (std::uint32_t t = 0; t < lane.tokens(); ++t)
                out[t] = first + static_cast<float>(t + 1) / tokens; // distinct up to 8 million tokens
        }

      private:
        std::uint32_t heads_ = 0;
        std::span<std::uint8_t> retrieves_; ///< (L, H)
    };
};

}} // namespace kvtl::v0
