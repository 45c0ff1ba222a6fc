// Budget: every layer and head may keep the same (the null object of the slot). SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace kvtl::inline v0 {

struct uniform {
    static constexpr std::string_view name = "uniform";
};

} // namespace kvtl::inline v0
