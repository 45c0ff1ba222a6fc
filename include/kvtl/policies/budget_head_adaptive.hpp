// Budget: the heads of a layer compete for the entries of the layer (Ada-KV).
//
// What:   the best H * b scores of a layer are found over all its heads. A head gets the number of its own
//         entries among them, mixed with a guaranteed part of the mean. `Layers` gives b for each layer.
// Source: Ada-KV; its benchmarks use floor 0.2 (the default of its library is 0.5). Deviation: the mixture is
//         divided exactly.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/budget_uniform.hpp>
#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/reservation.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <class Layers = uniform> struct head_adaptive {
    static_assert(!Layers::late, "[kvtl] budget: head_adaptive divides layers whose budgets are fixed");
    static constexpr std::string_view name = "head_adaptive";
    static constexpr bool late = true;
    static constexpr bool decides_together = true;
    static constexpr bool reads_preference = false;
    struct config {
        float floor = 0.2F; ///< part of the mean that every head keeps, 0 to 1
        typename Layers::config layers{};
        template <class Visit> void fields(Visit&& visit) {
            visit("floor", floor);
            layers.fields(visit);
        }
        template <class Visit> void tables(Visit&& visit) const { show_tables(layers, visit); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const budget_limits& limits, std::span<std::byte> memory) noexcept
            : floor_(c.floor), limits_(limits) {
            carver carve(memory);
            weight_ = carve.take<double>(limits.heads);
            cap_ = carve.take<std::uint32_t>(limits.heads);
            const std::size_t size = layers_state::bytes(limits);
            layers_ = layers_state(c.layers, limits, carve.take<std::byte>(size));
        }
        [[nodiscard]] static std::size_t bytes(const budget_limits& limits) noexcept {
            carver carve;
            static_cast<void>(carve.take<double>(limits.heads));
            static_cast<void>(carve.take<std::uint32_t>(limits.heads));
            static_cast<void>(carve.take<std::byte>(layers_state::bytes(limits)));
            return carve.used();
        }
        [[nodiscard]] static status check(const config& c, const budget_limits& limits) noexcept {
            if (!(c.floor >= 0.0F && c.floor <= 1.0F))
                return status::failure(errc::invalid_argument, "budget.floor is %g; valid: 0 to 1",
                                       static_cast<double>(c.floor));
            return layers_state::check(c.layers, limits);
        }
        /// Until its layer is divided, a head may turn out to get all of it.
        [[nodiscard]] std::uint32_t provisional(std::uint32_t layer, std::uint32_t n) const noexcept {
            const std::uint64_t all = std::uint64_t{layers_.provisional(layer, n)} * limits_.heads;
            return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, all));
        }
        [[nodiscard]] std::uint64_t peak() const noexcept {
            std::uint64_t layer = 0;
            for (std::uint32_t l = 0; l < limits_.layers; ++l)
                layer = std::max<std::uint64_t>(layer, provisional(l, limits_.most));
            return layers_.peak() + layer * limits_.heads;
        }
        template <score_board Board>
        void revise(std::uint32_t layer, const Board& board, std::span<std::uint32_t> keep) const noexcept {
            const std::uint32_t heads = limits_.heads;
            const std::span<std::uint32_t> mine = keep.subspan(std::size_t{layer} * heads, heads);
            const std::uint32_t b = layers_.provisional(layer, board.competing());
            std::uint64_t left = std::uint64_t{b} * heads;
            score_threshold best = rank_threshold(left, [&](auto&& f) {
                for (std::uint32_t h = 0; h < heads; ++h) board.visit(layer, h, f);
            });
            const auto sure = static_cast<std::uint32_t>(floor_ * static_cast<float>(b));
            for (std::uint32_t h = 0; h < heads; ++h) {
                weight_[h] = 0;
                board.visit(layer, h, [&](float score) {
                    if (best.passes(score)) weight_[h] += 1.0;
                });
                cap_[h] = mine[h] - std::min(mine[h], sure);
                left -= std::min<std::uint64_t>(left, std::min(mine[h], sure));
            }
            split_exactly(weight_, cap_, left, cap_);
            for (std::uint32_t h = 0; h < heads; ++h) mine[h] = cap_[h] + std::min(mine[h], sure);
        }

      private:
        using layers_state = typename Layers::state;
        float floor_ = 0;
        budget_limits limits_{};
        std::span<double> weight_;
        std::span<std::uint32_t> cap_;
        layers_state layers_{};
    };
};

}} // namespace kvtl::v0
