// Whether a saved sequence and a cache agree on every setting that decides (identity.hpp).
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved.hpp>
#include <kvtl/status.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

namespace kvtl { inline namespace v0 {

/// The settings that are saved and may differ.
inline constexpr std::array<std::string_view, 2> may_differ{"attend_tokens", "products"};
[[nodiscard]] constexpr bool must_agree(std::string_view name) noexcept {
    return name != may_differ[0] && name != may_differ[1];
}

/// The first setting in which a saved sequence differs from a cache; ok where none does.
[[nodiscard, gnu::cold]] inline status compare_identity(std::span<const identity_field> saved,
                                                        std::span<const identity_field> here) noexcept {
    const auto find = [](std::span<const identity_field> in,
                         const std::string& name) -> const identity_field* {
        for (const identity_field& f : in)
            if (f.name == name) return &f;
        return nullptr;
    };
    const auto differs = [](const identity_field* was, const identity_field* is) {
        const auto text = [](const identity_field* f) { return f == nullptr ? "nothing" : f->value.c_str(); };
        return status::failure(
            errc::file_refused,
            "load: %s is %s in this cache and was %s when the sequence was saved; valid: a cache that "
            "is opened alike",
            (is == nullptr ? was : is)->name.c_str(), text(is), text(was));
    };
    for (const identity_field& f : here)
        if (const identity_field* was = find(saved, f.name);
            must_agree(f.name) && (was == nullptr || was->value != f.value))
            return differs(was, &f);
    for (const identity_field& f : saved)
        if (must_agree(f.name) && find(here, f.name) == nullptr) return differs(&f, nullptr);
    return {};
}
/// Both attend as many entries per step, with the same products.
[[nodiscard, gnu::cold]] inline bool same_attention(std::span<const identity_field> saved,
                                                    std::span<const identity_field> here) noexcept {
    const auto value = [](std::span<const identity_field> in, std::string_view name) {
        for (const identity_field& f : in)
            if (f.name == name) return std::string_view(f.value);
        return std::string_view();
    };
    return std::all_of(may_differ.begin(), may_differ.end(),
                       [&](std::string_view name) { return value(saved, name) == value(here, name); });
}

}} // namespace kvtl::v0
