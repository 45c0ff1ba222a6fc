// Score: some query heads of a layer, known to retrieve by meaning, vote on the entries that all its heads
// keep (CompressKV).
//
// What:   the window's attention of the voting heads, summed over the window, pooled, averaged. `votes` marks
//         the heads. Without it every head votes, which is SnapKV with one choice per layer.
// Source: CompressKV: window 8, average of 5, four heads per layer found offline. The table is copied.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/slots/retention.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace kvtl { inline namespace v0 {

struct voting_heads : score_defaults {
    static constexpr std::string_view name = "voting_heads";
    static constexpr engine_input needs = engine_input::q | engine_input::k;
    static constexpr score_source source = score_source::window;
    static constexpr bool decides_together = true;
    static constexpr std::uint32_t spare_rows = 1;
    struct config {
        std::uint32_t pool_width = 5;
        std::vector<std::uint8_t> votes{}; ///< (L, HQ), not 0 where a head votes
        template <class Visit> void fields(Visit&& visit) { visit("pool_width", pool_width); }
        template <class Visit> void tables(Visit&& visit) const { visit("votes", votes); }
    };
    class state : public score_hooks {
      public:
        state() = default;
        state(const config& c, const score_limits& l, std::span<std::byte> memory) noexcept
            : width_(c.pool_width), heads_(l.kv_heads * l.group) {
            carver carve(memory);
            votes_ = carve.take<std::uint8_t>(std::size_t{l.layers} * heads_);
            std::fill(votes_.begin(), votes_.end(), std::uint8_t{1});
            std::copy(c.votes.begin(), c.votes.end(), votes_.begin());
        }
        [[nodiscard]] static std::size_t bytes(const config&, const score_limits& l) noexcept {
            return std::size_t{l.layers} * l.kv_heads * l.group;
        }
        [[nodiscard]] static status check(const config& c, const score_limits& l) noexcept {
            const std::size_t heads = std::size_t{l.kv_heads} * l.group;
            if (!c.votes.empty() && c.votes.size() != l.layers * heads)
                return status::failure(errc::invalid_argument,
                                       "retention.votes has %zu entries; valid: layers * query_heads = %zu",
                                       c.votes.size(), l.layers * heads);
            for (std::size_t layer = 0; layer < l.layers && !c.votes.empty(); ++layer) {
                const auto own = std::span(c.votes).subspan(layer * heads, heads);
                if (std::all_of(own.begin(), own.end(), [](std::uint8_t v) { return v == 0; }))
                    return status::failure(errc::invalid_argument,
                                           "retention.votes: no head of layer %zu votes; valid: one or more",
                                           layer);
            }
            return check_pool_width(c.pool_width);
        }
        template <element E> void score(const prompt_lane<E>& lane, std::span<float> out) const noexcept {
            const std::span<float> sum = lane.spare.first(lane.tokens());
            std::fill(sum.begin(), sum.end(), 0.0F);
            const std::size_t first = std::size_t{lane.layer} * heads_ + std::size_t{lane.head} * lane.group;
            for_each_observed(lane, [&](std::uint32_t, std::uint32_t g, std::span<const float> p) {
                if (votes_[first + g] != 0) simd::add(p.data(), sum.data(), p.size());
            });
            strip_window(lane, sum);
            pool_scores<pooling::average>(sum, width_, out);
        }

      private:
        std::uint32_t width_ = 5, heads_ = 0;
        std::span<std::uint8_t> votes_;
    };
};

}} // namespace kvtl::v0
