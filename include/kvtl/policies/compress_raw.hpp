// Compressor: an entry is stored as it is, post-RoPE, each number rounded to `Element` (the null object of
// the slot).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/slots/compressor.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <element Element> struct raw {
    static constexpr std::string_view name = element_name<Element>();
    using element_type = Element;
};

}} // namespace kvtl::v0
