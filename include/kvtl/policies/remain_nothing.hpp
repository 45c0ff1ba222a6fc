// Remainder: nothing stands in for units that are not read (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace kvtl::inline v0 {

struct nothing {
    static constexpr std::string_view name = "nothing";
};

} // namespace kvtl::inline v0
