// Position: a kept key keeps the position it was rotated to (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace kvtl::inline v0 {

struct original {
    static constexpr std::string_view name = "original";
};

} // namespace kvtl::inline v0
