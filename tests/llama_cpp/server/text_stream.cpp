// Text in pieces, as a client sees it: stop strings and characters that are split between tokens.
// SPDX-License-Identifier: MIT
#include "text_stream.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using kvtl_server::text_stream;

namespace {

struct shown {
    std::vector<std::string> pieces;
    std::string text;
    bool stopped = false;
};

shown stream(const std::vector<std::string>& pieces, std::vector<std::string> stops) {
    text_stream s(std::move(stops));
    shown out;
    for (const auto& piece : pieces) {
        out.pieces.push_back(s.add(piece));
        out.text += out.pieces.back();
        if (s.stopped()) break;
    }
    out.stopped = s.stopped();
    out.pieces.push_back(s.finish());
    out.text += out.pieces.back();
    return out;
}

/// Cut anywhere, by a fixed seed.
std::vector<std::string> cut(const std::string& text, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = 1 + random() % 4;
        pieces.push_back(text.substr(at, n));
        at += n;
    }
    return pieces;
}

} // namespace

TEST_CASE("without stop strings every byte is shown") {
    const std::string text = "plain, \xC3\xA9t\xC3\xA9, \xE2\x82\xAC 5, \xF0\x9F\x98\x80!";
    for (unsigned seed = 0; seed < 50; ++seed) CHECK(stream(cut(text, seed), {}).text == text);
}

TEST_CASE("a character is shown as a whole") {
    const shown s = stream({"a\xE2", "\x82", "\xAC", "b"}, {});
    CHECK(s.pieces == std::vector<std::string>{"a", "", "\xE2\x82\xAC", "b", ""});
    // Bytes that begin a character which never comes stay until the end.
    CHECK(stream({"a\xF0\x9F"}, {}).pieces == std::vector<std::string>{"a", "\xF0\x9F"});
    // Bytes that are no UTF-8 do not hold anything back for ever.
    CHECK(stream({"\x80\x80\x80\x80", "x"}, {}).text == "\x80\x80\x80\x80x");
}

TEST_CASE("the text ends before the first stop string, wherever pieces are cut") {
    const std::string text = "one two\n\nthree STOP four END five";
    for (unsigned seed = 0; seed < 200; ++seed) {
        const shown s = stream(cut(text, seed), {"END", "STOP"});
        CHECK(s.stopped);
        CHECK(s.text == "one two\n\nthree ");
    }
    CHECK(stream({"ab", "ab", "abc"}, {"ababc"}).text == "ab"); // a beginning inside a beginning
    CHECK(stream({"xSTOP"}, {"STOP"}).text == "x");
    CHECK(stream({"STOP"}, {"STOP"}).text.empty());
}

TEST_CASE("what only looked like a stop string is shown") {
    const shown s = stream({"a S", "TO", "ne", " ST"}, {"STOP"});
    CHECK_FALSE(s.stopped);
    CHECK(s.text == "a STOne ST");
    CHECK(s.pieces == std::vector<std::string>{"a ", "", "STOne", " ", "ST"});
}
