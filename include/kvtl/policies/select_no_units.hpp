// Selector: no unit. Only sinks and window are attended (StreamingLLM as a reference line of retrieval).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/selector.hpp>

#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct no_units {
    static constexpr std::string_view name = "no_units";
    static constexpr bool takes_everything = false;
    static constexpr bool uses_scores = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
        [[nodiscard]] std::uint32_t choose(const choice_input&, std::span<chosen_unit>) const noexcept {
            return 0;
        }
    };
};

}} // namespace kvtl::v0
