// Selector: every unit enters attention, whatever the budget (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/selector.hpp>
#include <kvtl/unit.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct all_units {
    static constexpr std::string_view name = "all_units";
    static constexpr bool takes_everything = true;
    static constexpr bool uses_scores = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
    };
};

}} // namespace kvtl::v0
