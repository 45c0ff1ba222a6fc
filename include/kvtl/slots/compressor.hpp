// The compressor slot: the bytes of an entry. Numbers are stored as they come, rounded to `element_type`.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/slots/policy.hpp>

namespace kvtl { inline namespace v0 {

template <class P>
concept stores_elements = requires {
    typename P::element_type;
    requires element<typename P::element_type>;
};

template <class P, class G>
concept compressor_for = has_name<P> && stores_elements<P>;

template <class P, class G> consteval void explain_compressor() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] compressor: add `static constexpr std::string_view name` and what "
                      "slots/compressor.hpp lists");
    } else {
        static_assert(holds(stores_elements<P>),
                      "[kvtl] compressor: declare element_type as float, f16 or bf16");
    }
}

}} // namespace kvtl::v0
