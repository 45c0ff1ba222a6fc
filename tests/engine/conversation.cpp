// A conversation over the project's own engine: each turn reads its own tokens alone and says what reading everything from the
// beginning would; what is stopped or taken back has not been said.
// SPDX-License-Identifier: MIT
#include "conversation.hpp"

#include "chat_template.hpp"
#include "dense_cache.hpp"
#include "model.hpp"
#include "random_model.hpp"
#include "support/scratch_folder.hpp"
#include "transformer_chat.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

using namespace engine;

namespace {

const char* const chatml = "{% for m in messages %}<|im_start|>{% endfor %}";

/// A model on the disk with a cache of `tokens`, which sees a message in chunks of 8.
struct set_up {
    explicit set_up(const char* chat_template = "", std::size_t tokens = 200) {
        random_model spec;
        spec.build().write(folder.file("model.gguf"));
        file.emplace(folder.file("model.gguf"));
        weights.emplace(*file);
        words.emplace(*file);
        cache_options o;
        o.shape = weights->hyper().shape;
        o.max_tokens = tokens;
        cache.emplace(o);
        computes.emplace(*weights, *cache, pool, 512);
        chat.emplace(*computes, *words, *cache, chat_template, tokens, 8);
    }

    [[nodiscard]] conversation talk() {
        return {*chat, {.predict = 6, .ignore_end = true}, [this] { return until_stop-- == 0; }};
    }
    [[nodiscard]] turn_end say(conversation& c, const char* text) {
        return c.say(text, cost, [](const std::string&) {});
    }
    /// Tokens that the cache holds.
    [[nodiscard]] std::size_t held() const {
        const auto& s = weights->hyper().shape;
        return cache->stats().resident_bytes_peak / (2 * sizeof(double) * s.layers * s.kv_heads * s.head_dim);
    }

    kvtl_test::scratch_folder folder;
    std::optional<gguf_file> file;
    std::optional<model> weights;
    std::optional<tokenizer> words;
    thread_pool pool{1};
    std::optional<dense_cache> cache;
    std::optional<transformer> computes;
    std::optional<transformer_chat> chat;
    std::size_t until_stop = 1000; ///< times that it is asked
    turn_cost cost;
};

} // namespace

TEST_CASE("a turn costs its own tokens, and says what the whole read at once would") {
    for (const char* chat_template : {"", chatml}) {
        CAPTURE(std::string(chat_template));
        set_up s(chat_template);
        auto talk = s.talk();
        CHECK(talk.templated() == (*chat_template != '\0'));
        REQUIRE(s.say(talk, "the first thing that is said") == turn_end::length);
        const std::size_t before = s.held();
        CHECK(before == talk.tokens());
        const std::string text = talk.text();
        REQUIRE(s.say(talk, "and another") == turn_end::length);
        const std::string added = talk.text().substr(text.size());
        const auto& said = talk.answers().back();
        CHECK(said.tokens.size() == 6);
        CHECK(added.ends_with(said.text));
        // What was said since, and the token that nobody had asked about.
        const std::string typed = added.substr(0, added.size() - said.text.size());
        CHECK(s.cost.read == s.words->encode(typed, true, false).size() + 1);
        CHECK(s.held() == before + s.cost.read + 5);

        set_up whole(chat_template);
        std::vector<token_id> tokens =
            whole.words->encode(text.substr(0, text.size() - talk.answers().front().text.size()), true);
        const auto append = [&](const std::vector<token_id>& more) {
            tokens.insert(tokens.end(), more.begin(), more.end());
        };
        append(talk.answers().front().tokens);
        append(whole.words->encode(typed, true, false));
        const generation again =
            generate(*whole.computes, *whole.words, tokens, {.predict = 6, .ignore_end = true});
        CHECK(again.tokens == said.tokens);
    }
}

TEST_CASE("stopped while the message is read it has not been said") {
    set_up s, never;
    auto talk = s.talk(), quiet = never.talk();
    REQUIRE(s.say(talk, "one") == turn_end::length);
    REQUIRE(never.say(quiet, "one") == turn_end::length);
    const std::size_t before = s.held();
    s.until_stop = 1;
    REQUIRE(s.say(talk, "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9") == turn_end::withdrawn);
    CHECK(s.cost.read > 8);
    CHECK(s.held() == before);
    s.until_stop = 1000;
    REQUIRE(s.say(talk, "two") == turn_end::length);
    REQUIRE(never.say(quiet, "two") == turn_end::length);
    CHECK(talk.answers().back().tokens == quiet.answers().back().tokens);
}

TEST_CASE("an answer can be stopped, turns can be taken back, and a full context ends it") {
    set_up s("", 60);
    auto talk = s.talk();
    s.until_stop = 2; // asked after every token
    REQUIRE(s.say(talk, "one") == turn_end::stopped);
    CHECK(talk.answers().back().tokens.size() == 3);
    const auto first = talk.answers().back().tokens;
    s.until_stop = 1000;
    REQUIRE(s.say(talk, "two") == turn_end::length);
    std::size_t again = 0;
    for (int turns = 0; turns < 2; ++turns) {
        REQUIRE(talk.take_back(again));
        CHECK(again == 0);
        CHECK(s.chat->max_tokens() == 60);
    }
    CHECK_FALSE(talk.take_back(again));
    REQUIRE(s.say(talk, "one") == turn_end::length);
    CHECK(std::equal(first.begin(), first.end(), talk.answers().back().tokens.begin()));
    REQUIRE(s.say(talk, "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6") == turn_end::withdrawn);
    CHECK(s.cost.read == 0);
    turn_end end = turn_end::length;
    for (int turns = 0; turns < 20 && end == turn_end::length; ++turns) end = s.say(talk, "more");
    CHECK((end == turn_end::full || end == turn_end::withdrawn));
    CHECK(s.held() < 60);
}

TEST_CASE("the two templates that are known, by their control tokens") {
    const std::vector<message> said = {{"user", "Who?"}, {"assistant", "I."}, {"user", "Why?"}};
    CHECK(render_chat(chatml, said, true) == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nI.<|"
                                             "im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
                                             "<|im_start|>assistant\n");
    CHECK(render_chat("'<|start_header_id|>' + m.role", std::span(said).first(1), false) ==
          "<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>");
    CHECK(render_chat(chatml, {}, true) == "<|im_start|>assistant\n");
    CHECK_FALSE(render_chat("", said, true).has_value());
    CHECK_FALSE(render_chat("[INST] {{ m.content }} [/INST]", said, true).has_value());
}
