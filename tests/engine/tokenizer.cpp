// Both tokenizer families on vocabularies small enough to know the answers.
// SPDX-License-Identifier: MIT
#include "tokenizer.hpp"

#include "error.hpp"
#include "gguf_writer.hpp"
#include "random_model.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>

namespace {

using namespace engine;
using ids = std::vector<token_id>;

/// A tokenizer over a file that is already gone: the mapping keeps it alive.
struct loaded {
    std::unique_ptr<gguf_file> file;
    std::unique_ptr<tokenizer> words;
    explicit loaded(const gguf_writer& w) {
        const std::string path = "tokenizer-" + std::to_string(::getpid()) + ".gguf";
        w.write(path);
        file = std::make_unique<gguf_file>(path);
        std::remove(path.c_str());
        words = std::make_unique<tokenizer>(*file);
    }
};

/// 0 unk, 1 bos, 2 eos, 3..258 bytes, then pieces.
gguf_writer sentencepiece(const std::function<void(gguf_writer&)>& more = nullptr) {
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<float> scores = {0, 0, 0};
    std::vector<std::int32_t> types = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
        char text[8];
        std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
        tokens.emplace_back(text);
        scores.push_back(0);
        types.push_back(6);
    }
    const std::string space = "\xE2\x96\x81";
    const std::vector<std::pair<std::string, float>> pieces = {
        {space, -10}, {"a", -10},  {"b", -10},        {"c", -10}, {"ab", -1},
        {"bc", -2},   {"abc", -5}, {space + "a", -3}, {"aa", -1},
    }; // ids 259 ...
    for (const auto& [text, score] : pieces) {
        tokens.push_back(text);
        scores.push_back(score);
        types.push_back(1);
    }
    tokens.emplace_back("<|user|>"); // 268
    scores.push_back(0);
    types.push_back(4);
    gguf_writer w;
    w.text("tokenizer.ggml.model", "llama");
    w.texts("tokenizer.ggml.tokens", tokens);
    w.f32s("tokenizer.ggml.scores", scores);
    w.i32s("tokenizer.ggml.token_type", types);
    w.u32("tokenizer.ggml.bos_token_id", 1);
    w.u32("tokenizer.ggml.eos_token_id", 2);
    w.u32("tokenizer.ggml.unknown_token_id", 0);
    if (more) more(w);
    return w;
}

} // namespace

TEST_CASE("sentencepiece: the best score merges first, the leftmost among equals") {
    const loaded t(sentencepiece());
    // "_abc": ab (-1) before bc (-2) and _a (-3); then abc (-5).
    CHECK(t.words->encode("abc") == ids{1, 259, 265});
    // "_aaa": the left aa first, which leaves a single a.
    CHECK(t.words->encode("aaa") == ids{1, 259, 267, 260});
    // "_ac": nothing better than _a.
    CHECK(t.words->encode("ac") == ids{1, 266, 262});
    // "_bc_ab": the second space is marked too.
    CHECK(t.words->encode("bc ab") == ids{1, 259, 264, 259, 263});
}

TEST_CASE("sentencepiece: what is unknown becomes bytes, control tokens only on request") {
    const loaded t(sentencepiece());
    CHECK(t.words->encode("\n") == ids{1, 259, 3 + 10});
    CHECK(t.words->encode("\xC3\xA9"
                          "a") == ids{1, 259, 3 + 0xC3, 3 + 0xA9, 260});
    CHECK(t.words->encode("\xFF") == ids{1, 259, 3 + 0xFF}); // not UTF-8
    const auto as_text = t.words->encode("</s>");
    CHECK(as_text.size() == 6);
    CHECK(t.words->encode("b</s>", true) == ids{1, 259, 261, 2});
    CHECK(t.words->encode("b<|user|>b") ==
          ids{1, 259, 261, 268, 259, 261}); // user-defined tokens always count
    CHECK(t.words->encode("") == ids{1});
}

TEST_CASE("sentencepiece: decoding gives the bytes back") {
    const loaded t(sentencepiece());
    for (const std::string text : {"abc a\n\xC3\xA9 b", "   ", "x<0x0A>"})
        CHECK(t.words->decode(t.words->encode(text)) == " " + text);
    CHECK(t.words->piece(1).empty());
    CHECK(t.words->piece(100000).empty());
    CHECK(t.words->is_end(2));
    CHECK(!t.words->is_end(1));
}

TEST_CASE("sentencepiece: the file's flags") {
    const loaded plain(sentencepiece([](gguf_writer& w) {
        w.flag("tokenizer.ggml.add_bos_token", false);
        w.flag("tokenizer.ggml.add_space_prefix", false);
    }));
    CHECK(plain.words->encode("abc") == ids{265});
    CHECK(plain.words->encode("").empty());
}

TEST_CASE("byte-level: merges apply in the order of the list, inside of words only") {
    // random_model: bytes are ids 0..255; then 256 " t", 257 "he", 258 " the", 259 "in", 260 "er", 261 " a",
    // 262 "on", 263 "ing"
    const loaded t(random_model{.architecture = "qwen2"}.build());
    CHECK(t.words->encode("the") == ids{'t', 257});
    CHECK(t.words->encode(" the") == ids{258});
    CHECK(t.words->encode("in the ring") == ids{259, 258, ' ', 'r', 263});
    CHECK(t.words->encode("her") == ids{257, 'r'}); // h e comes before e r
    CHECK(t.words->encode("a on 12") == ids{'a', ' ', 262, ' ', '1', '2'});
    CHECK(t.words->encode("\n\xC3\xA9") == ids{'\n', 0xC3, 0xA9});
    CHECK(t.words->decode(t.words->encode("in the ring\t\xC3\xA9\xFF 1")) == "in the ring\t\xC3\xA9\xFF 1");
}

TEST_CASE("byte-level: control tokens and the end of a turn") {
    const loaded t(random_model{.architecture = "qwen2"}.build());
    CHECK(t.words->encode("in<|im_end|>in", true) == ids{259, 265, 259});
    CHECK(t.words->encode("<|im_end|>").size() > 1);
    CHECK(t.words->is_end(264));
    CHECK(t.words->is_end(265)); // by its name
    CHECK(t.words->piece(265).empty());
}

TEST_CASE("byte-level llama3: a word that is a token is not merged, and BOS is the custom") {
    gguf_writer w;
    std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc", "<|begin_of_text|>"};
    w.text("tokenizer.ggml.model", "gpt2");
    w.text("tokenizer.ggml.pre", "llama-bpe");
    w.texts("tokenizer.ggml.tokens", tokens);
    w.i32s("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 3});
    w.texts("tokenizer.ggml.merges", {"a b"}); // no merge leads to abc
    w.u32("tokenizer.ggml.bos_token_id", 5);
    const loaded t(w);
    CHECK(t.words->encode("abc") == ids{5, 4});
    CHECK(t.words->encode("abcc") == ids{5, 3, 2, 2});
}

TEST_CASE("tokenizers that are unknown or incomplete are refused") {
    gguf_writer w;
    w.text("tokenizer.ggml.model", "bert");
    w.texts("tokenizer.ggml.tokens", {"a"});
    CHECK_THROWS_AS(loaded{w}, bad_input);
    gguf_writer no_scores;
    no_scores.text("tokenizer.ggml.model", "llama");
    no_scores.texts("tokenizer.ggml.tokens", {"a"});
    CHECK_THROWS_AS(loaded{no_scores}, bad_input);
    CHECK_THROWS_AS(loaded{sentencepiece([](gguf_writer& s) { s.u32("tokenizer.ggml.eot_token_id", 4000); })},
                    bad_input);
}
