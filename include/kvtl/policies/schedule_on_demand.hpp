// Schedule: reads are issued when a layer is attended, or when the engine calls prefetch() (the null object
// of the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/slots/schedule.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

struct on_demand {
    static constexpr std::string_view name = "on_demand";
};

}} // namespace kvtl::v0
