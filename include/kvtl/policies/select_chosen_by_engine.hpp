// Selector: the units that the engine names, for models that were trained to choose blocks of tokens
// themselves.
//
// The engine hands over layer_input::chosen, numbers of units for every token and lane. Unit u holds the entries
// sinks + u * E to sinks + (u + 1) * E - 1, E entries per unit. `none` fills rows that name fewer. Units
// are taken in the order of the row, as far as the budget allows. A unit whose entries are still in the window is
// attended in any case.
//
// Cost:   nothing is scored. The check of a call takes N * N comparisons per lane, N numbers in a row.
// Errors: a number beyond the last entry or named twice refuses the call before it changes anything.
// Limits: units of one size without records (head_groups, layer_groups). select() has no numbers and is refused;
//         prefetch() reads nothing.
// Source: no paper; block selections of trained sparse attention (MoBA, NSA).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/selector.hpp>

#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct chosen_by_engine {
    static constexpr std::string_view name = "chosen_by_engine";
    static constexpr engine_input needs = engine_input::chosen;
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
        [[nodiscard]] std::uint32_t choose(const choice_input& in,
                                           std::span<chosen_unit> out) const noexcept {
            std::uint32_t left = in.budget, n = 0;
            for (const std::uint32_t u : in.named) {
                if (u >= in.units()) continue; // none, or still in the window
                const std::uint32_t entries = in.entries(u);
                if (entries == 0 || entries > left) continue;
                out[n++] = {.unit = u};
                left -= entries;
            }
            return n;
        }
    };
};

}} // namespace kvtl::v0
