// Names of compressors that are made of other compressors, at compile time: "rotated(int4_group)". The name is part of
// what a saved file and a storage file are checked against, so two compositions need two names.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/version.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace kvtl { inline namespace v0 { namespace detail {

/// `Outer` gives the name in front of the parentheses, in outer_name.
template <class Outer, class... Parts> struct codec_name {
    static constexpr auto text = [] {
        // Two parentheses, and a comma between every two parts.
        std::array<char, Outer::outer_name.size() + (Parts::name.size() + ...) + sizeof...(Parts) + 1> all{};
        auto to = std::copy(Outer::outer_name.begin(), Outer::outer_name.end(), all.begin());
        char before = '(';
        const auto add = [&](std::string_view name) {
            *to++ = before;
            to = std::copy(name.begin(), name.end(), to);
            before = ',';
        };
        (add(Parts::name), ...);
        *to = ')';
        return all;
    }();
    static constexpr std::string_view value{text.data(), text.size()};
};

}}} // namespace kvtl::v0::detail
