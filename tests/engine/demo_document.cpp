// Documents with hidden facts: what the writer promises, and that the embedded model can answer when nothing
// is forgotten.
// SPDX-License-Identifier: MIT
#include "demo_document.hpp"

#include "error.hpp"
#include "gguf.hpp"
#include "kv_cache.hpp"
#include "model.hpp"
#include "sampler.hpp"
#include "thread_pool.hpp"
#include "transformer.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <set>

namespace {

using namespace engine;

const std::string data_folder = KVTL_SOURCE_DIR "/examples/data/";

struct tiny {
    gguf_file file{data_folder + "tiny-2k.gguf"};
    model weights{file};
    tokenizer words{file};
    std::string prose = read(data_folder + "prose.txt");
    document_writer writer{words, prose};

    static std::string read(const std::string& path) {
        std::ifstream in(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

std::size_t occurrences(std::string_view text, std::string_view part) {
    std::size_t count = 0;
    for (auto at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
        ++count;
    return count;
}

} // namespace

TEST_CASE("every fact stands in the document once, and the question asks for one of them") {
    tiny t;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        CAPTURE(seed);
        const auto q = t.writer.write({.tokens = 1500, .facts = 4, .depth = 0.5, .seed = seed});
        REQUIRE(q.facts.size() == 4);
        REQUIRE(q.asked < 4);
        const auto question = q.prompt.rfind("Question: ");
        REQUIRE(question != std::string::npos);
        const std::string document = q.prompt.substr(0, question);
        std::set<std::string> names, codes;
        std::size_t last = 0;
        for (const fact& f : q.facts) {
            CHECK(occurrences(document, f.sentence()) == 1);
            CHECK(occurrences(document, f.code) == 1);
            CHECK(f.code.size() == 5);
            CHECK(document.find(f.sentence()) >= last);
            last = document.find(f.sentence());
            names.insert(f.name);
            codes.insert(f.code);
        }
        CHECK(names.size() == 4);
        CHECK(codes.size() == 4);
        CHECK(occurrences(document, "secret code") == 4);
        CHECK(document.find("# ") == std::string::npos);
        const std::string& name = q.facts[q.asked].name;
        CHECK(q.answer == q.facts[q.asked].code);
        CHECK(q.prompt.substr(question) == "Question: What is the secret code of " + name +
                                               "? Answer: The secret code of " + name + " is");
    }
}

TEST_CASE("prompts have the length that was asked for, to within a sentence") {
    tiny t;
    for (const std::size_t tokens : {500U, 1000U, 1500U, 1900U})
        for (std::uint64_t seed = 1; seed <= 20; ++seed) {
            CAPTURE(tokens);
            CAPTURE(seed);
            const auto q = t.writer.write({.tokens = tokens, .facts = 4, .seed = seed});
            const auto length = t.words.encode(q.prompt).size();
            CHECK(length > tokens - 20);
            CHECK(length < tokens + 100);
        }
}

TEST_CASE("the asked fact stands at its depth") {
    tiny t;
    for (std::uint64_t seed = 1; seed <= 10; ++seed)
        for (const double depth : {0.0, 0.25, 0.5, 0.9, 1.0}) {
            CAPTURE(seed);
            CAPTURE(depth);
            const auto q = t.writer.write({.tokens = 1500, .facts = 4, .depth = depth, .seed = seed});
            const auto at = static_cast<double>(q.prompt.find(q.facts[q.asked].sentence()));
            const auto end = static_cast<double>(q.prompt.rfind("Question:"));
            CHECK(at / end > depth - 0.15);
            CHECK(at / end < depth + 0.15);
        }
}

TEST_CASE("the seed decides the document, and nothing else does") {
    tiny t;
    const auto first = t.writer.write({.seed = 7});
    CHECK(first.prompt == t.writer.write({.seed = 7}).prompt);
    const auto other = t.writer.write({.seed = 8});
    CHECK(first.prompt.substr(0, 200) != other.prompt.substr(0, 200));
    CHECK(first.answer != other.answer);
}

TEST_CASE("a prompt is split before the token that begins its last question") {
    tiny t;
    const std::string document = "A paddle is wound up. Question: Why? Answer: For water.";
    const auto ids = t.words.encode(document + " Question: Who? Answer:");
    const auto begin = question_begin(t.words, ids);
    REQUIRE(begin > 1);
    REQUIRE(begin < ids.size());
    const std::span<const token_id> all = ids;
    // This vocabulary has no token for a space and a Q together: the space stays with the document.
    CHECK(t.words.decode(all.first(begin)) == " " + document + " ");
    CHECK(t.words.decode(all.subspan(begin)) == "Question: Who? Answer:");

    const auto after_line = t.words.encode("Water.\nQuestion: Who?");
    CHECK(t.words.decode(std::span(after_line).first(question_begin(t.words, after_line))) == " Water.\n");
    const auto none = t.words.encode("A paddle is wound up.");
    CHECK(question_begin(t.words, none) == none.size());
    CHECK(without_spaces(" 4 8213. A") == "48213.A");
}

TEST_CASE("what cannot be written is refused") {
    tiny t;
    CHECK_THROWS_AS(document_writer(t.words, "# Only a title\n\n"), bad_input);
    CHECK_THROWS_AS((void)t.writer.write({.tokens = 100000}), bad_input);
    CHECK_THROWS_AS((void)t.writer.write({.tokens = 1500, .facts = 0}), bad_input);
    CHECK_THROWS_AS((void)t.writer.write({.tokens = 400, .facts = 100}), bad_input);
}

TEST_CASE("tiny-2k answers nearly every question when it attends everything") {
    tiny t;
    thread_pool pool(2);
    std::size_t right = 0, asked = 0;
    for (std::uint64_t seed = 1; seed <= 3; ++seed)
        for (const double depth : {0.1, 0.5, 0.9}) {
            const auto q = t.writer.write({.depth = depth, .seed = seed});
            const auto ids = t.words.encode(q.prompt);
            const std::span<const token_id> prompt = ids;
            cache_options o;
            o.policy = "full";
            o.shape = t.weights.hyper().shape;
            o.max_tokens = ids.size() + 8;
            o.memory_bytes = std::size_t{64} << 20;
            o.attend_tokens = o.max_tokens;
            o.io = "memory";
            o.shards = 2;
            auto cache = open_cache(o);
            REQUIRE_MESSAGE(cache.ok(), (cache ? "" : cache.error().message));
            transformer run(t.weights, **cache, pool);
            run.begin();
            const auto question = question_begin(t.words, ids);
            (void)run.prefill(prompt.first(question));
            std::span<const float> logits;
            for (const auto id : prompt.subspan(question)) logits = run.step(id);
            sampler greedy(0, 1);
            std::string text;
            for (int n = 0; n < 8; ++n) {
                const auto id = greedy.choose(logits);
                text += t.words.piece(id);
                logits = run.step(id);
            }
            CAPTURE(q.prompt.substr(question));
            ++asked;
            right += without_spaces(text).starts_with(q.answer) ? 1 : 0;
        }
    CHECK(asked == 9);
    CHECK(right == asked);
}
