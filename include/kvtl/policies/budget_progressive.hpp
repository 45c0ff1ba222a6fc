// Budget: layers compete, and every further layer improves the division (DynamicKV §4.2, Algorithm 1).
//
// What:   at first a layer keeps up to r_max times the mean. After every `interval` layers, the best base * H
//         * seen scores of all layers seen so far are found together. Layers share the whole budget in
//         proportion to their number of these scores, and are truncated to it.
// Cost:   four passes over the scores of the provisional survivors per revision; nothing is copied.
// Source: DynamicKV; its published runs use r_max 10 and interval 4. Deviations, each of which repairs a
//         defect of the reference code: a budget never grows again (entries that a layer has dropped go to
//         layers that still hold more), the last layer always triggers a revision, and the sum is exact.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/budget.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// Who competes: the layers, whose heads then keep equally many; or every head of every layer.
enum class competitors : std::uint8_t { layers, heads };

template <competitors Who> struct progressive_among {
    static constexpr std::string_view name = Who == competitors::layers ? "progressive" : "progressive_heads";
    static constexpr bool late = true;
    static constexpr bool decides_together = true;
    static constexpr bool reads_preference = false;
    struct config {
        float r_max = 10.0F;        ///< a layer's provisional budget, as a multiple of the mean
        std::uint32_t interval = 4; ///< layers between two revisions
        float floor = 0.0F;         ///< part of the mean that nobody loses, 0 to 1
        template <class Visit> void fields(Visit&& visit) {
            visit("r_max", r_max);
            visit("interval", interval);
            visit("floor", floor);
        }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const budget_limits& limits, std::span<std::byte> memory) noexcept
            : config_(c), limits_(limits) {
            carver carve(memory);
            weight_ = carve.take<double>(parts(limits));
            cap_ = carve.take<std::uint32_t>(parts(limits));
        }
        [[nodiscard]] static std::size_t bytes(const budget_limits& limits) noexcept {
            carver carve;
            static_cast<void>(carve.take<double>(parts(limits)));
            static_cast<void>(carve.take<std::uint32_t>(parts(limits)));
            return carve.used();
        }
        [[nodiscard]] static status check(const config& c, const budget_limits&) noexcept {
            if (!(c.r_max >= 1.0F && c.r_max < 1e6F))
                return status::failure(errc::invalid_argument, "budget.r_max is %g; valid: 1 to 1e6",
                                       static_cast<double>(c.r_max));
            if (c.interval == 0)
                return status::failure(errc::invalid_argument, "budget.interval is 0; valid: 1 and more");
            if (!(c.floor >= 0.0F && c.floor <= 1.0F))
                return status::failure(errc::invalid_argument, "budget.floor is %g; valid: 0 to 1",
                                       static_cast<double>(c.floor));
            return {};
        }
        [[nodiscard]] std::uint32_t provisional(std::uint32_t, std::uint32_t n) const noexcept {
            const double most = static_cast<double>(config_.r_max) * limits_.base;
            return most < n ? static_cast<std::uint32_t>(most) : n;
        }
        /// Just before a revision: the layers revised before hold the whole budget together, as far as they
        /// ever had so much, and up to `interval` fresh ones are whole.
        [[nodiscard]] std::uint64_t peak() const noexcept {
            const std::uint64_t layer = std::uint64_t{provisional(0, limits_.most)} * limits_.heads;
            std::uint64_t most = 0;
            for (std::uint64_t seen = 0; seen < limits_.layers; seen += config_.interval)
                most = std::max(most,
                                std::min(limits_.total(), seen * layer) +
                                    std::min<std::uint64_t>(config_.interval, limits_.layers - seen) * layer);
            return most;
        }
        template <score_board Board>
        void revise(std::uint32_t layer, const Board& board, std::span<std::uint32_t> keep) const noexcept {
            const std::uint32_t seen = layer + 1, heads = limits_.heads;
            if (seen % config_.interval != 0 && seen != limits_.layers) return;
            const auto everything = [&](auto&& f) {
                for (std::uint32_t l = 0; l < seen; ++l)
                    for (std::uint32_t h = 0; h < heads; ++h) board.visit(l, h, f);
            };
            score_threshold best = rank_threshold(std::uint64_t{limits_.base} * heads * seen, everything);
            constexpr bool by_head = Who == competitors::heads;
            const std::uint32_t lanes = by_head ? seen * heads : seen;
            const auto floor = static_cast<std::uint32_t>(config_.floor * static_cast<float>(limits_.base));
            std::uint64_t left = std::uint64_t{limits_.base} * limits_.layers * (by_head ? heads : 1);
            for (std::uint32_t i = 0; i < lanes; ++i) {
                weight_[i] = 0;
                const std::uint32_t held = keep[by_head ? i : i * heads], sure = std::min(held, floor);
                cap_[i] = held - sure;
                left -= std::min<std::uint64_t>(left, sure);
            }
            for (std::uint32_t l = 0; l < seen; ++l)
                for (std::uint32_t h = 0; h < heads; ++h)
                    board.visit(l, h, [&](float score) {
                        if (best.passes(score)) weight_[by_head ? l * heads + h : l] += 1.0;
                    });
            const auto room = cap_.first(lanes);
            split_exactly(weight_.first(lanes), room, left, room);
            const std::uint32_t width = by_head ? 1 : heads;
            for (std::uint32_t i = 0; i < lanes; ++i)
                std::fill_n(&keep[i * width], width, room[i] + std::min(keep[i * width], floor));
        }

      private:
        [[nodiscard]] static std::size_t parts(const budget_limits& limits) noexcept {
            return std::size_t{limits.layers} * (Who == competitors::heads ? limits.heads : 1);
        }
        config config_{};
        budget_limits limits_{};
        std::span<double> weight_;
        std::span<std::uint32_t> cap_;
    };
};

using progressive = progressive_among<competitors::layers>;
using progressive_heads = progressive_among<competitors::heads>;

}} // namespace kvtl::v0
