// Compressor: an entry is stored as it is, post-RoPE, with each number rounded to `Element` (the null object
// of the slot).
//
// Record: the plain row itself, (lane heads, D) numbers of Element.
// Cost:   attention reads the rows with the kernels of simd/attend.hpp; encoding is a copy.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/policies/support/plain_rows.hpp>
#include <kvtl/slots/compressor.hpp>

#include <string_view>

namespace kvtl { inline namespace v0 {

template <element Element> struct raw {
    static constexpr std::string_view name = element_name<Element>();
    using plain_type = Element;
    static constexpr key_domain domain = key_domain::post_rope;
    static constexpr std::uint32_t granule = 1;
    static constexpr bool ragged = false;
    static constexpr bool rows_are_records = true;
    static constexpr double relative_error = 0;
    struct config {
        template <class Visit> void fields(Visit&&) {}
    };

    class state : public plain_rows<Element> {
      public:
        state() = default;
        state(const config&, const record_shape& shape) noexcept : plain_rows<Element>(shape) {}
    };
};

}} // namespace kvtl::v0
