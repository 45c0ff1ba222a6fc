// SPDX-License-Identifier: MIT
#include "unicode.hpp"

#include <algorithm>
#include <iterator>

namespace engine {

namespace {

struct code_range {
    std::uint32_t first;
    std::uint32_t last;
};

#include "unicode_ranges.inc"

constexpr code_range spaces[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                 {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                 {0x205F, 0x205F}, {0x3000, 0x3000}};

template <std::size_t N> bool contains(const code_range (&ranges)[N], char32_t value) noexcept {
    const auto* found = std::lower_bound(std::begin(ranges), std::end(ranges), value,
                                         [](const code_range& r, char32_t v) { return r.last < v; });
    return found != std::end(ranges) && found->first <= value;
}

} // namespace

code_point first_code_point(std::string_view text) noexcept {
    constexpr code_point invalid = {0xFFFD, 1};
    const auto lead = static_cast<unsigned char>(text[0]);
    if (lead < 0x80) return {lead, 1};
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return invalid;
    auto value = static_cast<char32_t>(lead & (0x7FU >> length));
    for (std::size_t i = 1; i < length; ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if ((next & 0xC0) != 0x80) return invalid;
        value = (value << 6) | (next & 0x3FU);
    }
    // Longer than necessary, a surrogate, or beyond the last code point.
    constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < least[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return invalid;
    return {value, length};
}

void append_utf8(std::string& text, char32_t value) {
    const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
    const auto tail = [&](unsigned shift) { put(0x80 | ((value >> shift) & 0x3F)); };
    if (value < 0x80) {
        put(value);
    } else if (value < 0x800) {
        put(0xC0 | (value >> 6));
        tail(0);
    } else if (value < 0x10000) {
        put(0xE0 | (value >> 12));
        tail(6);
        tail(0);
    } else {
        put(0xF0 | (value >> 18));
        tail(12);
        tail(6);
        tail(0);
    }
}

char_class class_of(char32_t value) noexcept {
    if (contains(spaces, value)) return char_class::space;
    if (contains(letters, value)) return char_class::letter;
    if (contains(numbers, value)) return char_class::number;
    return char_class::other;
}

} // namespace engine
