// Index: keeps nothing (the null object of the slot); for selectors that use no scores.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/index.hpp>
#include <kvtl/unit.hpp>
#include <kvtl/views.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct no_index {
    static constexpr std::string_view name = "no_index";
    static constexpr bool needs_means = false;
    static constexpr bool scores = false;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, const geometry&) noexcept {}
        [[nodiscard]] static std::size_t bytes_per_unit() noexcept { return 0; }
    };
};

}} // namespace kvtl::v0
