// Budget: every layer and head may keep the same number of entries (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/budget.hpp>

#include <algorithm>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct uniform {
    static constexpr std::string_view name = "uniform";
    static constexpr bool late = false;
    static constexpr bool decides_together = false;
    static constexpr bool reads_preference = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const budget_limits& limits, std::span<std::byte>) noexcept : limits_(limits) {}
        [[nodiscard]] static std::size_t bytes(const budget_limits&) noexcept { return 0; }
        [[nodiscard]] static status check(const config&, const budget_limits&) noexcept { return {}; }

        /// Entries that each head of `layer` keeps at first, when n compete.
        [[nodiscard]] std::uint32_t provisional(std::uint32_t, std::uint32_t n) const noexcept {
            return std::min(n, limits_.base);
        }
        /// The most entries that all heads of all layers ever hold.
        [[nodiscard]] std::uint64_t peak() const noexcept { return limits_.total(); }
        template <score_board Board>
        void revise(std::uint32_t, const Board&, std::span<std::uint32_t>) const noexcept {}

      private:
        budget_limits limits_{};
    };
};

}} // namespace kvtl::v0
