// Budget: linearly less with every layer (PyramidKV). The first layers spread their attention and the last
// layers concentrate it, so the first layers get more.
//
// It was published twice with different arithmetic. The authors divide the entries beside the window, and the
// last layer gets 1 / beta of the mean. kvpress divides window and rest together (`pyramid_with_window`).
// Deviations: shares are divided exactly (budget_split.hpp), while both publications round each layer
// separately. Entries that a short prompt cannot use in one layer go to the others, while both fall back to
// uniform.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/budget.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <bool CountsWindow> struct pyramid_of {
    static constexpr std::string_view name = CountsWindow ? "pyramid_with_window" : "pyramid";
    static constexpr bool late = false;
    static constexpr bool decides_together = false;
    static constexpr bool reads_preference = false;
    struct config {
        float beta = 20.0F; ///< the smallest budget is 1 / beta of the mean one
        template <class Visit> void fields(Visit&& visit) { visit("beta", beta); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const budget_limits& limits, std::span<std::byte> memory) noexcept
            : config_(c), limits_(limits) {
            carver carve(memory);
            weight_ = carve.take<double>(limits.layers);
            keep_ = carve.take<std::uint32_t>(limits.layers);
        }
        [[nodiscard]] static std::size_t bytes(const budget_limits& limits) noexcept {
            carver carve;
            static_cast<void>(carve.take<double>(limits.layers));
            static_cast<void>(carve.take<std::uint32_t>(limits.layers));
            return carve.used();
        }
        [[nodiscard]] static status check(const config& c, const budget_limits&) noexcept {
            if (!(c.beta >= 1.0F && c.beta < 1e6F))
                return status::failure(errc::invalid_argument, "budget.beta is %g; valid: 1 to 1e6",
                                       static_cast<double>(c.beta));
            return {};
        }
        [[nodiscard]] std::uint32_t provisional(std::uint32_t layer, std::uint32_t n) const noexcept {
            const double pinned = CountsWindow ? limits_.pinned : 0.0, mean = limits_.base + pinned;
            const double smallest = mean / static_cast<double>(config_.beta), largest = 2.0 * mean - smallest;
            const double step = limits_.layers > 1 ? (largest - smallest) / (limits_.layers - 1) : 0.0;
            for (std::uint32_t l = 0; l < limits_.layers; ++l)
                weight_[l] = (limits_.layers > 1 ? largest - step * l : mean) - pinned;
            std::fill(keep_.begin(), keep_.end(), n);
            split_exactly(weight_, keep_, std::uint64_t{limits_.base} * limits_.layers, keep_);
            return keep_[layer];
        }
        [[nodiscard]] std::uint64_t peak() const noexcept { return limits_.total(); }
        template <score_board Board>
        void revise(std::uint32_t, const Board&, std::span<std::uint32_t>) const noexcept {}

      private:
        config config_{};
        budget_limits limits_{};
        std::span<double> weight_;
        std::span<std::uint32_t> keep_;
    };
};

using pyramid = pyramid_of<false>;
using pyramid_with_window = pyramid_of<true>;

}} // namespace kvtl::v0
