// Budget: an offline table gives the importance of each layer (CompressKV, EpiCache, LUKV).
//
// What:   every layer keeps `least` entries. The rest of the whole budget is divided in proportion to the
//         table, with at most `cap` times the mean per layer. Pinned entries count in both numbers. Without a
//         table all layers are equally important.
// Source: CompressKV: 32 entries, window included, plus importance times the rest, at most 3 times the mean.
// Limits: the table is copied.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/policies/support/budget_split.hpp>
#include <kvtl/reservation.hpp>
#include <kvtl/slots/budget.hpp>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

namespace kvtl { inline namespace v0 {

struct table {
    static constexpr std::string_view name = "table";
    static constexpr bool late = false;
    static constexpr bool decides_together = false;
    static constexpr bool reads_preference = false;
    struct config {
        std::uint32_t least = 32;        ///< entries every layer keeps, as far as the mean allows
        float cap = 3.0F;                ///< the most a layer gets, as a multiple of the mean
        std::vector<float> importance{}; ///< (L); empty: equal
        template <class Visit> void fields(Visit&& visit) {
            visit("least", least);
            visit("cap", cap);
        }
        template <class Visit> void tables(Visit&& visit) const { visit("importance", importance); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const budget_limits& limits, std::span<std::byte> memory) noexcept
            : least_(c.least), cap_(c.cap), limits_(limits) {
            carver carve(memory);
            importance_ = carve.take<float>(limits.layers);
            weight_ = carve.take<double>(limits.layers);
            keep_ = carve.take<std::uint32_t>(limits.layers);
            std::fill(importance_.begin(), importance_.end(), 1.0F);
            std::copy(c.importance.begin(), c.importance.end(), importance_.begin());
        }
        [[nodiscard]] static std::size_t bytes(const budget_limits& limits) noexcept {
            carver carve;
            static_cast<void>(carve.take<float>(limits.layers));
            static_cast<void>(carve.take<double>(limits.layers));
            static_cast<void>(carve.take<std::uint32_t>(limits.layers));
            return carve.used();
        }
        [[nodiscard]] static status check(const config& c, const budget_limits& limits) noexcept {
            if (!c.importance.empty() && c.importance.size() != limits.layers)
                return status::failure(
                    errc::invalid_argument,
                    "budget.importance has %zu numbers; valid: one per layer (%u), or none",
                    c.importance.size(), limits.layers);
            for (std::size_t l = 0; l < c.importance.size(); ++l)
                if (!(c.importance[l] >= 0.0F && c.importance[l] < 1e30F))
                    return status::failure(errc::invalid_argument,
                                           "budget.importance of layer %zu is %g; valid: 0 to 1e30", l,
                                           static_cast<double>(c.importance[l]));
            if (!(c.cap >= 1.0F && c.cap < 1e6F))
                return status::failure(errc::invalid_argument, "budget.cap is %g; valid: 1 to 1e6",
                                       static_cast<double>(c.cap));
            return {};
        }
        [[nodiscard]] std::uint32_t provisional(std::uint32_t layer, std::uint32_t n) const noexcept {
            const std::uint32_t pinned = limits_.pinned;
            const std::uint32_t sure = std::min({least_ - std::min(least_, pinned), limits_.base, n});
            const double most =
                static_cast<double>(cap_) * (static_cast<double>(limits_.base) + pinned) - pinned;
            const std::uint32_t cap = most < n ? static_cast<std::uint32_t>(most) : n;
            std::copy(importance_.begin(), importance_.end(), weight_.begin());
            std::fill(keep_.begin(), keep_.end(), cap - std::min(cap, sure));
            split_exactly(weight_, keep_, std::uint64_t{limits_.base - sure} * limits_.layers, keep_);
            return sure + keep_[layer];
        }
        [[nodiscard]] std::uint64_t peak() const noexcept { return limits_.total(); }
        template <score_board Board>
        void revise(std::uint32_t, const Board&, std::span<std::uint32_t>) const noexcept {}

      private:
        std::uint32_t least_ = 0;
        float cap_ = 0;
        budget_limits limits_{};
        std::span<float> importance_;
        std::span<double> weight_;
        std::span<std::uint32_t> keep_;
    };
};

}} // namespace kvtl::v0
