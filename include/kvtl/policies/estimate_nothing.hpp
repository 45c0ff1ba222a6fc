// Estimator: no estimate for units that are not read (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/estimator.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct nothing {
    static constexpr std::string_view name = "nothing";
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    struct state {
        state() = default;
        state(const config&, const geometry&) noexcept {}
    };
};

}} // namespace kvtl::v0
