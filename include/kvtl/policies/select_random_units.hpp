// Selector: random units, as many as fit the budget. Every index must beat it.
//
// The order is a pseudo-random permutation of the unit numbers: a Feistel network on the next power of four,
// in which numbers beyond the last unit are skipped. It needs no memory, and no unit can occur twice.
//
// Cost:   four rounds of a hash per number, at most four numbers per unit.
// Limits: the order depends only on the seed and the number of units. It changes whenever a lane gets a unit,
//         and lanes with equally many units choose the same ones.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/selector.hpp>

#include <bit>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct random_units {
    static constexpr std::string_view name = "random_units";
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    struct config {
        std::uint64_t seed = 1;
        template <class Visit> void fields(Visit&& visit) { visit("seed", seed); }
    };
    class state {
      public:
        state() = default;
        state(const config& c, const geometry&) noexcept : seed_(c.seed) {}

        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            if (in.units() == 0) return 0;
            const unsigned half = (static_cast<unsigned>(std::bit_width(in.units() - 1)) + 1) / 2;
            std::uint32_t left = in.budget, chosen = 0;
            for (std::uint64_t i = 0; i < std::uint64_t{1} << (2 * half) && left > 0; ++i) {
                const std::uint32_t u = permuted(static_cast<std::uint32_t>(i), half, in.units());
                if (u >= in.units()) continue;
                const std::uint32_t entries = in.entries(u);
                if (entries == 0 || entries > left) continue;
                out[chosen++] = {.unit = u};
                left -= entries;
            }
            return chosen;
        }

      private:
        /// A permutation of the numbers of 2 * half bits: every round can be undone.
        [[nodiscard]] std::uint32_t permuted(std::uint32_t i, unsigned half,
                                             std::uint32_t units) const noexcept {
            const std::uint32_t mask = (std::uint32_t{1} << half) - 1;
            std::uint32_t left = i >> half, right = i & mask;
            for (std::uint64_t round = 0; round < 4; ++round) {
                std::uint64_t x =
                    (seed_ * 4 + round) * 0x9E3779B97F4A7C15U + (std::uint64_t{units} << 32) + right;
                for (const std::uint64_t odd : {0xBF58476D1CE4E5B9U, 0x94D049BB133111EBU})
                    x = (x ^ (x >> 31)) * odd;
                const std::uint32_t mixed = left ^ (static_cast<std::uint32_t>(x >> 40) & mask);
                left = right;
                right = mixed;
            }
            return (left << half) | right;
        }

        std::uint64_t seed_ = config{}.seed;
    };
};

}} // namespace kvtl::v0
