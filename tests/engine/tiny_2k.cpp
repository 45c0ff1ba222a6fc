// The engine against the embedded model's reference: token ids, fp32 logits and greedy tokens computed by
// another program.
// SPDX-License-Identifier: MIT
#include "dense_cache.hpp"
#include "generate.hpp"
#include "gguf.hpp"
#include "model.hpp"
#include "sampler.hpp"
#include "tokenizer.hpp"
#include "transformer.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <sstream>

namespace {

using namespace engine;

const std::string data_folder = KVTL_SOURCE_DIR "/examples/data/";

struct tiny {
    gguf_file file{data_folder + "tiny-2k.gguf"};
    model weights{file};
    tokenizer words{file};
    thread_pool pool{2};

    cache_options options() const {
        cache_options o;
        o.shape = weights.hyper().shape;
        o.max_tokens = weights.hyper().context;
        o.shards = 2;
        return o;
    }
};

nlohmann::json read_json(const std::string& path) {
    std::ifstream in(path);
    return nlohmann::json::parse(in);
}

} // namespace

TEST_CASE("tiny-2k: ids, logits and greedy tokens are those of the reference") {
    tiny t;
    const auto reference = read_json(data_folder + "reference.json");
    REQUIRE(reference.at("prompts").size() == 3);
    for (const auto& prompt : reference.at("prompts")) {
        const auto text = prompt.at("prompt").get<std::string>();
        CAPTURE(text);
        const auto ids = t.words.encode(text);
        CHECK(ids == prompt.at("ids").get<std::vector<token_id>>());

        dense_cache cache(t.options());
        transformer run(t.weights, cache, t.pool);
        run.begin();
        auto logits = run.prefill(ids);
        for (const auto& top : prompt.at("top10"))
            CHECK(std::abs(logits[top[0].get<token_id>()] - top[1].get<float>()) < 2e-2F);

        const auto greedy = prompt.at("greedy32").get<std::vector<token_id>>();
        const auto margin = prompt.at("margin32").get<std::vector<float>>();
        std::vector<token_id> decoded;
        for (std::size_t i = 0; i < greedy.size(); ++i) {
            CAPTURE(i);
            const auto best = highest(logits, 2);
            if (margin[i] > 4e-2F) CHECK(best[0].first == greedy[i]);
            CHECK(std::abs(best[0].second - best[1].second - margin[i]) < 4e-2F);
            decoded.push_back(greedy[i]);
            logits = run.step(
                greedy[i]); // the reference's token, so that one close call does not end the comparison
        }
        CHECK(t.words.decode(decoded) == prompt.at("greedy32_text").get<std::string>());
    }
}

TEST_CASE("tiny-2k: the answer to a question is generated") {
    tiny t;
    dense_cache cache(t.options());
    transformer run(t.weights, cache, t.pool);
    generate_options options;
    options.predict = 6;
    options.top_logits = 3;
    std::size_t prefilled = 0;
    std::vector<token_id> streamed;
    const auto ids = t.words.encode(
        "The secret code of Marlow is 48213. The notes are about the weather. Question: What is the "
        "secret code of Marlow? Answer: The secret code of Marlow is");
    const auto out =
        generate(run, t.words, ids, options,
                 {[&](std::size_t done) { prefilled = done; }, [&](token_id id) { streamed.push_back(id); }});
    std::string answer = t.words.decode(out.tokens);
    std::erase(answer, ' ');
    CHECK(answer.starts_with("48213"));
    CHECK(prefilled == ids.size());
    CHECK(streamed == out.tokens);
    CHECK(out.steps == 5);
    REQUIRE(out.logits.size() == 6);
    CHECK(out.logits[0].size() == 3);
    CHECK(out.logits[0][0].first == out.tokens[0]);
}

TEST_CASE("tiny-2k: every paragraph of its essays encodes and decodes to itself") {
    std::ifstream in(KVTL_SOURCE_DIR "/examples/data/prose.txt");
    REQUIRE(in);
    tiny t;
    std::size_t paragraphs = 0, tokens = 0, characters = 0;
    for (std::string text; std::getline(in, text);) {
        if (text.empty()) continue;
        const auto ids = t.words.encode(text);
        CHECK(t.words.decode(ids) == " " + text);
        ++paragraphs, tokens += ids.size(), characters += text.size();
    }
    CHECK(paragraphs > 50);
    CHECK(tokens > 10'000);
    CHECK(tokens < characters / 2);
}
