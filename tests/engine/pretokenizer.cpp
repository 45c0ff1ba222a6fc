// The word scanners against answers of the regular expressions they stand for.
// SPDX-License-Identifier: MIT
#include "pretokenizer.hpp"

#include "unicode.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>

namespace {

using namespace engine;
using words = std::vector<std::string_view>;

} // namespace

TEST_CASE("gpt2: words take one space, signs stay together") {
    const auto split = [](std::string_view text) { return split_words(text, word_pattern::gpt2); };
    CHECK(split("Hello world") == words{"Hello", " world"});
    CHECK(split("don't DON'T we'll've") == words{"don", "'t", " DON", "'", "T", " we", "'ll", "'ve"});
    CHECK(split("a  b") == words{"a", " ", " b"});
    CHECK(split("x = 12345;") == words{"x", " =", " 12345", ";"});
    CHECK(split("end  ") == words{"end", "  "});
    CHECK(split("a\n\n b") == words{"a", "\n\n", " b"});
    CHECK(split("\tif") == words{"\t", "if"});
    CHECK(split("(foo)...!") == words{"(", "foo", ")...!"});
    CHECK(split("") == words{});
}

TEST_CASE("llama3: digits by three, a sign may lead a word, line ends close signs and spaces") {
    const auto split = [](std::string_view text) { return split_words(text, word_pattern::llama3); };
    CHECK(split("12345678") == words{"123", "456", "78"});
    CHECK(split("in 2024.") == words{"in", " ", "202", "4", "."});
    CHECK(split("DON'T 'Re'LL") == words{"DON", "'T", " '", "Re", "'LL"});
    CHECK(split("foo(bar)\n\nx") == words{"foo", "(bar", ")\n\n", "x"});
    CHECK(split("a \n \n  b") == words{"a", " \n \n", " ", " b"});
    CHECK(split("\tif  x") == words{"\tif", " ", " x"});
    CHECK(split(" ==\r\n  ") == words{" ==\r\n", "  "});
    CHECK(split("_name #tag") == words{"_name", " #", "tag"});
}

TEST_CASE("qwen2: digits one by one") {
    const auto split = [](std::string_view text) { return split_words(text, word_pattern::qwen2); };
    CHECK(split("12 3") == words{"1", "2", " ", "3"});
    CHECK(split("I'm 5") == words{"I", "'m", " ", "5"});
    CHECK(split("a1b") == words{"a", "1", "b"});
}

TEST_CASE("letters, numbers and spaces beyond ASCII") {
    const auto split = [](std::string_view text) { return split_words(text, word_pattern::qwen2); };
    CHECK(split("\xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87") ==
          words{"\xC3\xA9t\xC3\xA9", " \xE4\xB8\xAD\xE6\x96\x87"});
    CHECK(split("\xE2\x85\xA7\xC2\xBD") ==
          words{"\xE2\x85\xA7", "\xC2\xBD"});                              // Roman eight, one half: numbers
    CHECK(split("a\xE3\x80\x80 b") == words{"a", "\xE3\x80\x80", " b"});   // ideographic space
    CHECK(split("\xF0\x9F\x98\x80!x") == words{"\xF0\x9F\x98\x80!", "x"}); // emoji: neither
    CHECK(split("a\xFF\xC0 b") == words{"a", "\xFF\xC0", " b"}); // bytes that are no UTF-8 count as signs
    CHECK(class_of(U'\u0301') == char_class::other);             // a combining mark is no letter
    CHECK(class_of(U'\u0664') == char_class::number);
    CHECK(class_of(U'\u00AA') == char_class::letter);
    CHECK(class_of(U'\U000323AF') == char_class::letter);
    CHECK(class_of(U'\u0085') == char_class::space);
}

TEST_CASE("the words are the text, whatever the text") {
    std::mt19937 random(3);
    const std::string alphabet = "aB'sreLL 1 2\n\r\t.-(\xC3\xA9\xE4\xB8\xAD\x80";
    for (int round = 0; round < 2000; ++round) {
        std::string text;
        for (auto n = random() % 12; n > 0; --n) text += alphabet[random() % alphabet.size()];
        for (const auto pattern : {word_pattern::gpt2, word_pattern::llama3, word_pattern::qwen2}) {
            std::string joined;
            for (const auto word : split_words(text, pattern)) {
                CHECK(!word.empty());
                joined += word;
            }
            CHECK(joined == text);
        }
    }
}

TEST_CASE("code points: what is not UTF-8 is one byte long") {
    const auto same = [](std::string_view text, char32_t value, std::size_t bytes) {
        const auto c = first_code_point(text);
        return c.value == value && c.bytes == bytes;
    };
    CHECK(same("a", U'a', 1));
    CHECK(same("\xC3\xA9", U'\u00E9', 2));
    CHECK(same("\xE2\x96\x81", U'\u2581', 3));
    CHECK(same("\xF0\x9F\x98\x80", U'\U0001F600', 4));
    CHECK(same("\xC3", 0xFFFD, 1));             // cut
    CHECK(same("\xC0\x80", 0xFFFD, 1));         // longer than necessary
    CHECK(same("\xE0\x80\x80", 0xFFFD, 1));     // longer than necessary
    CHECK(same("\xED\xA0\x80", 0xFFFD, 1));     // a surrogate
    CHECK(same("\xF4\x90\x80\x80", 0xFFFD, 1)); // beyond the last code point
    CHECK(same("\x80", 0xFFFD, 1));
    for (const char32_t c :
         {U'\x7F', U'\u0080', U'\u07FF', U'\u0800', U'\uFFFD', U'\U00010000', U'\U0010FFFF'}) {
        std::string text;
        append_utf8(text, c);
        CHECK(same(text, c, text.size()));
    }
}
