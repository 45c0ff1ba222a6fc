// Budget: every new layer takes its share of the whole from the layers before it (CAKE, "cascading").
//
// What:   a layer's preference (how widely and how restlessly its window attends; the retention measures
//         it) is its weight. After each layer the whole budget is divided among the layers seen so far, so
//         memory never exceeds the budget and one layer.
// Source: CAKE. A share can only shrink as layers arrive, so cutting back step by step ends where one
//         division at the end would: tested. Deviation: exact division (budget_split.hpp) instead of
//         rounding with a fix-up.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/evict/budget.hpp>
#include <kvtl/evict/budget_split.hpp>
#include <kvtl/reservation.hpp>

#include <string_view>

namespace kvtl::inline v0 {

struct cascade {
    static constexpr std::string_view name = "cascade";
    static constexpr bool late = true;
    static constexpr bool decides_together = true;
    static constexpr bool reads_preference = true;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    template <class Geometry> class state {
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
        [[nodiscard]] std::uint32_t provisional(std::uint32_t, std::uint32_t n) const noexcept {
            return static_cast<std::uint32_t>(
                std::min<std::uint64_t>(n, std::uint64_t{limits_.base} * limits_.layers));
        }
        [[nodiscard]] std::uint64_t peak() const noexcept {
            const std::uint64_t layer = std::uint64_t{provisional(0, limits_.most)} * limits_.heads;
            return std::min(limits_.total() + layer, limits_.layers * layer);
        }
        template <score_board Board>
        void revise(std::uint32_t layer, const Board& board, std::span<std::uint32_t> keep) const noexcept {
            const std::uint32_t seen = layer + 1, heads = limits_.heads;
            for (std::uint32_t l = 0; l < seen; ++l) {
                weight_[l] = static_cast<double>(board.preference(l));
                cap_[l] = keep[l * heads];
            }
            const auto share = cap_.first(seen);
            split_exactly(weight_.first(seen), share, std::uint64_t{limits_.base} * limits_.layers, share);
            for (std::uint32_t i = 0; i < seen * heads; ++i) keep[i] = share[i / heads];
        }

      private:
        budget_limits limits_{};
        std::span<double> weight_;
        std::span<std::uint32_t> cap_;
    };
};

} // namespace kvtl::inline v0
