// A conversation says to the model what its template would render of the whole, and goes back when it is stopped.
// SPDX-License-Identifier: MIT
#include "conversation.hpp"

#include "session_chat.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

#include <doctest/doctest.h>

#include <optional>

namespace {

/// A model on the disk, loaded, with a session of `tokens` in batches of 16.
struct set_up {
    explicit set_up(const char* chat_template, std::size_t tokens = 512, const char* architecture = "llama") {
        REQUIRE(tiny_models::write(folder.file("model.gguf"),
                                   {.architecture = architecture, .chat_template = chat_template}));
        model.emplace(folder.file("model.gguf"));
        llama_run::session_options o;
        o.threads = 1;
        o.batch = 16;
        o.max_tokens = tokens;
        o.cache.policy = "dynakv";
        o.cache.memory_bytes = 16 << 20;
        o.cache.attend_tokens = tokens;
        o.cache.io = "memory";
        session.emplace(*model, o, "test");
        chat.emplace(*session);
    }

    kvtl_test::scratch_folder folder;
    std::optional<llama_run::loaded_model> model;
    std::optional<llama_run::session> session;
    std::optional<llama_run::session_chat> chat;
    std::size_t until_stop = 1000; ///< times that it is asked
    engine::turn_cost cost;

    [[nodiscard]] engine::conversation talk() {
        return {*chat, {.predict = 6, .ignore_end = true}, [this] { return until_stop-- == 0; }};
    }
    [[nodiscard]] engine::turn_end say(engine::conversation& c, const char* text) {
        return c.say(text, cost, [](const std::string&) {});
    }
};

constexpr const char* chatml = "{% for m in messages %}<|im_start|>{% endfor %}";

} // namespace

using engine::turn_end;

TEST_CASE("what is read turn by turn is what the template makes of the whole") {
    set_up s(chatml);
    auto talk = s.talk();
    REQUIRE(talk.templated());
    REQUIRE(s.say(talk, "one") == turn_end::length);
    REQUIRE(s.say(talk, "two") == turn_end::length);
    const auto& said = talk.answers();
    REQUIRE(said.size() == 2);
    CHECK(said[0].tokens.size() == 6);
    CHECK(talk.text() == "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n" + said[0].text +
                             "<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n" +
                             said[1].text);
    // The cache has all of it but the last token, which nobody asked about yet.
    CHECK(talk.tokens() == s.session->held(0));
}

TEST_CASE("without a template the text goes on") {
    set_up s("");
    auto talk = s.talk();
    CHECK_FALSE(talk.templated());
    REQUIRE(s.say(talk, "one") == turn_end::length);
    REQUIRE(s.say(talk, "two") == turn_end::length);
    CHECK(talk.text() == "one" + talk.answers()[0].text + "\ntwo" + talk.answers()[1].text);
}

TEST_CASE("an answer can be stopped, and the conversation goes on") {
    set_up s("");
    auto talk = s.talk();
    s.until_stop = 2; // asked after every token
    REQUIRE(s.say(talk, "one") == turn_end::stopped);
    CHECK(talk.answers().back().tokens.size() == 3);
    s.until_stop = 1000;
    REQUIRE(s.say(talk, "two") == turn_end::length);
    CHECK(talk.tokens() == s.session->held(0));
}

TEST_CASE("stopped while the message is read it has not been said") {
    for (const char* architecture : {"llama", "lfm2"}) { // the latter cannot rewind
        CAPTURE(std::string(architecture));
        set_up s("", 512, architecture), never("", 512, architecture);
        auto talk = s.talk();
        auto quiet = never.talk();
        REQUIRE(s.say(talk, "one") == turn_end::length);
        REQUIRE(never.say(quiet, "one") == turn_end::length);
        const std::size_t before = talk.tokens();
        const std::string text = talk.text();
        s.until_stop = 1;
        REQUIRE(s.say(talk, "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9") ==
                turn_end::withdrawn);
        CHECK(s.cost.read > 0);
        CHECK(talk.tokens() == before);
        CHECK(talk.text() == text);
        CHECK(s.session->held(0) == before);
        s.until_stop = 1000;
        REQUIRE(s.say(talk, "two") == turn_end::length);
        REQUIRE(never.say(quiet, "two") == turn_end::length);
        CHECK(talk.answers().back().tokens == quiet.answers().back().tokens);
    }
}

TEST_CASE("turns are taken back, from the beginning too") {
    set_up s("");
    auto talk = s.talk();
    REQUIRE(s.say(talk, "one") == turn_end::length);
    const auto first = talk.answers().front().tokens;
    REQUIRE(s.say(talk, "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9") == turn_end::length);
    std::size_t again = 0;
    REQUIRE(talk.take_back(again)); // longer than the window, so it is read again
    CHECK(again == talk.tokens());
    REQUIRE(talk.take_back(again));
    CHECK(again == 0);
    CHECK(talk.tokens() == 0);
    CHECK_FALSE(talk.take_back(again));
    REQUIRE(s.say(talk, "one") == turn_end::length);
    CHECK(talk.answers().front().tokens == first);
}

TEST_CASE("a full context refuses a message, or ends an answer") {
    set_up s("", 20);
    auto talk = s.talk();
    REQUIRE(s.say(talk, "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5") == turn_end::withdrawn);
    CHECK(s.cost.read == 0);
    CHECK(talk.text().empty());
    REQUIRE(s.say(talk, "0 1 2 3 4 5 6") == turn_end::full);
    CHECK(talk.answers().back().tokens.size() < 6);
    CHECK(talk.tokens() < 20);
    REQUIRE(s.say(talk, "more") == turn_end::withdrawn);
}
