// The little of Unicode that tokenizers need: code points of a UTF-8 text and three classes of them.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace engine {

/// A code point and the bytes it took. A byte that is not valid UTF-8 counts as U+FFFD of length 1.
struct code_point {
    char32_t value = 0;
    std::size_t bytes = 0;
};

/// The code point at the beginning of `text`, which is not empty.
[[nodiscard]] code_point first_code_point(std::string_view text) noexcept;

void append_utf8(std::string& text, char32_t value);

enum class char_class : std::uint8_t { letter, number, space, other };

/// `\p{L}`, `\p{N}`, `\s` of the pre-tokenizers' regular expressions, or none of them.
[[nodiscard]] char_class class_of(char32_t value) noexcept;

} // namespace engine
