// Texts that are remembered: what prompts share with them, and prompts in the tokens that were generated.
// SPDX-License-Identifier: MIT
#include "recent_texts.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using kvtl_server::recent_texts;
using tokens = std::vector<kvtl_server::token_id>;

namespace {

/// 0 to 25: a letter; 26 and up: two of them, all pairs. 1000: a control token.
std::string piece(kvtl_server::token_id id) {
    const auto letter = [](std::uint32_t n) { return std::string(1, static_cast<char>('a' + n)); };
    if (id == 1000) return "<end>";
    return id < 26 ? letter(id) : letter((id - 26) / 26) + letter((id - 26) % 26);
}
constexpr std::uint32_t pair(char a, char b) {
    return 26 + 26 * static_cast<std::uint32_t>(a - 'a') + static_cast<std::uint32_t>(b - 'a');
}
constexpr std::uint32_t one(char a) {
    return static_cast<std::uint32_t>(a - 'a');
}

std::string spelt(const tokens& t) {
    std::string all;
    for (const auto id : t) all += piece(id);
    return all;
}

/// A text in random tokens of one or two letters.
tokens cut(const std::string& text, std::mt19937& random) {
    tokens t;
    for (std::size_t i = 0; i < text.size();) {
        const bool two = i + 1 < text.size() && random() % 2 == 0;
        t.push_back(two ? pair(text[i], text[i + 1]) : one(text[i]));
        i += two ? 2 : 1;
    }
    return t;
}

} // namespace

TEST_CASE("a prompt takes the tokens of the conversation that it goes on from") {
    recent_texts texts(1000);
    texts.remember("", {pair('a', 'b'), one('c'), one('d'), one('e')});
    // The same text in other tokens, and more.
    CHECK(texts.as_said("", tokens{one('a'), one('b'), pair('c', 'd'), one('e'), pair('f', 'g')}, piece) ==
          tokens{pair('a', 'b'), one('c'), one('d'), one('e'), pair('f', 'g')});
    // A token of the prompt goes over the end of what was said: up to the boundary before it.
    CHECK(texts.as_said("", tokens{one('a'), one('b'), pair('c', 'd'), pair('e', 'f')}, piece) ==
          tokens{pair('a', 'b'), one('c'), one('d'), pair('e', 'f')});
    // Another text, a shorter one, and another user's.
    const tokens other{one('a'), one('b'), one('c'), one('x')}, shorter{one('a'), one('b')};
    CHECK(texts.as_said("", other, piece) == other);
    CHECK(texts.as_said("", shorter, piece) == shorter);
    const tokens same{one('a'), one('b'), pair('c', 'd'), one('e')};
    CHECK(texts.as_said("bob", same, piece) == same);
    CHECK(texts.as_said("", same, piece) == tokens{pair('a', 'b'), one('c'), one('d'), one('e')});
}

TEST_CASE("control tokens are compared by their names") {
    recent_texts texts(1000);
    texts.remember("", {pair('a', 'b'), 1000});
    const tokens without{one('a'), one('b'), one('c')};
    CHECK(texts.as_said("", without, piece) == without);
    CHECK(texts.as_said("", tokens{one('a'), one('b'), 1000, one('c')}, piece) ==
          tokens{pair('a', 'b'), 1000, one('c')});
}

TEST_CASE("the text never changes, whatever is remembered") {
    std::mt19937 random(7);
    recent_texts texts(20 * recent_texts::cost_of_a_text);
    std::string text;
    for (int round = 0; round < 3000; ++round) {
        if (text.size() > 60 || random() % 8 == 0) text.clear();
        for (std::size_t n = 1 + random() % 6; n > 0; --n) text += static_cast<char>('a' + random() % 2);
        const tokens prompt = cut(text, random);
        const tokens said = texts.as_said(std::to_string(random() % 2), prompt, piece);
        CHECK(spelt(said) == text);
        texts.remember(std::to_string(random() % 2), cut(text, random));
    }
}

TEST_CASE("the longest beginning that texts of a space share with a prompt, against all of them") {
    std::mt19937 random(5);
    recent_texts texts(1U << 20); // room for all
    std::vector<std::pair<std::string, tokens>> all;
    for (int round = 0; round < 400; ++round) {
        tokens t(1 + random() % 20);
        for (auto& id : t) id = static_cast<std::uint32_t>(random() % 2);
        const std::string space(1, static_cast<char>('a' + random() % 3));
        std::size_t most = 0;
        for (const auto& [whose, other] : all)
            if (whose == space) most = std::max(most, kvtl_server::common_beginning(other, t));
        CHECK(texts.shared(space, t) == most);
        texts.remember(space, t);
        all.emplace_back(space, t);
    }
}

TEST_CASE("the oldest texts leave") {
    constexpr std::size_t each = recent_texts::cost_of_a_text;
    recent_texts texts(2 * each + 10);
    texts.remember("", {1, 2, 3, 4});
    texts.remember("", {5, 6, 7, 8});
    CHECK(texts.shared("", tokens{1, 2, 9}) == 2);
    texts.remember("", {5, 6, 7, 8, 9}); // in the place of the one before it
    CHECK(texts.shared("", tokens{1, 2, 9}) == 2);
    texts.remember("", {7, 7});
    CHECK(texts.shared("", tokens{1, 2, 9}) == 0);
    CHECK(texts.shared("", tokens{5, 6}) == 2);
    texts.remember("", tokens(500, 3)); // the last one stays in any case
    CHECK(texts.shared("", tokens(600, 3)) == 500);
}

TEST_CASE("short texts do not stay for ever") {
    recent_texts texts(1000);
    texts.remember("", {1});
    for (kvtl_server::token_id id = 2; id < 20; ++id) texts.remember("", {id});
    CHECK(texts.shared("", tokens{1}) == 0);
    CHECK(texts.shared("", tokens{19}) == 1);
}
