// Retention: every entry is kept, on storage if not in memory (the null object of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/retention.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct keep_all {
    static constexpr std::string_view name = "keep_all";
    static constexpr bool drops = false;
};

}} // namespace kvtl::v0
