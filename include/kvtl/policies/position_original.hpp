// Position: a kept key keeps the position that it was rotated to (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/position.hpp>
#include <kvtl/status.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvtl { inline namespace v0 {

struct original {
    static constexpr std::string_view name = "original";
    static constexpr bool moves = false; ///< the distance between query and key is the one they came with
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };
    class state {
      public:
        state() = default;
        state(const config&, std::uint32_t, std::span<std::byte>) noexcept {}
        [[nodiscard]] static std::size_t bytes(std::uint32_t) noexcept { return 0; }
        [[nodiscard]] static status check(const config&, std::uint32_t) noexcept { return {}; }
    };
};

}} // namespace kvtl::v0
