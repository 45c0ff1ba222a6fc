// Budget: every new layer takes its share of the whole budget from the layers before it (CAKE, "cascading").
//
// What:   the weight of a layer is its preference: how widely its window attends and how much that changes,
//         or another measure of the retention. After each layer the whole budget is divided among the layers
//         seen so far. So memory never exceeds the budget and one layer. The first `First` and the last
//         `Last` layers are excluded: they keep the mean.
// Source: CAKE; with 2 and 1 excluded layers, D2O. Shares only shrink as layers arrive, so cutting step by
//         step gives the same result as one division at the end (tested). Deviation: exact division
//         (budget_split.hpp) instead of rounding with a correction.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/budget.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <std::uint32_t First, std::uint32_t Last> struct cascade_between {
    static constexpr std::string_view name = First + Last == 0 ? "cascade" : "cascade_between";
    static constexpr bool late = true;
    static constexpr bool decides_together = true;
    static constexpr bool reads_preference = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const budget_limits& limits, std::span<std::byte> memory) noexcept
            : limits_(limits) {
            carver carve(memory);
            weight_ = carve.take<double>(limits.layers);
            cap_ = carve.take<std::uint32_t>(limits.layers);
        }
        [[nodiscard]] static std::size_t bytes(const budget_limits& limits) noexcept {
            carver carve;
            static_cast<void>(carve.take<double>(limits.layers));
            static_cast<void>(carve.take<std::uint32_t>(limits.layers));
            return carve.used();
        }
        [[nodiscard]] static status check(const config&, const budget_limits&) noexcept { return {}; }
        /// A layer may get everything when it is the only one that counts.
        [[nodiscard]] std::uint32_t provisional(std::uint32_t layer, std::uint32_t n) const noexcept {
            const std::uint64_t most = std::uint64_t{limits_.base} * (takes_part(layer) ? limits_.layers : 1);
            return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, most));
        }
        [[nodiscard]] std::uint64_t peak() const noexcept {
            std::uint64_t layer = 0;
            for (std::uint32_t l = 0; l < limits_.layers; ++l)
                layer = std::max(layer, std::uint64_t{provisional(l, limits_.most)} * limits_.heads);
            return std::min(limits_.total() + layer, limits_.layers * layer);
        }
        template <score_board Board>
        void revise(std::uint32_t layer, const Board& board, std::span<std::uint32_t> keep) const noexcept {
            const std::uint32_t seen = layer + 1, heads = limits_.heads;
            std::uint64_t left = std::uint64_t{limits_.base} * limits_.layers;
            for (std::uint32_t l = 0; l < seen; ++l) {
                cap_[l] = keep[l * heads];
                if (takes_part(l))
                    weight_[l] = static_cast<double>(board.preference(l));
                else
                    left -= cap_[l];
            }
            const std::uint32_t begin = std::min(First, seen),
                                end = std::max(
                                    begin, std::min(seen, limits_.layers - std::min(Last, limits_.layers)));
            const auto share = cap_.subspan(begin, end - begin);
            split_exactly(weight_.subspan(begin, end - begin), share, left, share);
            for (std::uint32_t i = begin * heads; i < end * heads; ++i) keep[i] = cap_[i / heads];
        }

      private:
        [[nodiscard]] bool takes_part(std::uint32_t layer) const noexcept {
            return layer >= First && layer + Last < limits_.layers;
        }
        budget_limits limits_{};
        std::span<double> weight_;
        std::span<std::uint32_t> cap_;
    };
};

using cascade = cascade_between<0, 0>;

}} // namespace kvtl::v0
