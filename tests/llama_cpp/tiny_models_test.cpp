// The models that the other tests of this folder compare on: llama.cpp loads and runs them, and what it generates is
// worth comparing.
// SPDX-License-Identifier: MIT
#include "backends.hpp"
#include "support/scratch_folder.hpp"
#include "tiny_models.hpp"

#include <doctest/doctest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

namespace {

struct freed {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
};
using model_ptr = std::unique_ptr<llama_model, freed>;
using context_ptr = std::unique_ptr<llama_context, freed>;

model_ptr load(const std::string& path) {
    static const bool once = (kvtl_llama::load_backends(), true);
    (void)once;
    auto params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = false; // llama.cpp cannot run deepseek2 with those of AMX
    return model_ptr(llama_model_load_from_file(path.c_str(), params));
}

struct run {
    std::vector<llama_token> tokens{};
    std::vector<float> margins{};
    double deviation = 0; // of the first logits
    bool good = true;
};

run generate(llama_model* model, std::size_t prompt, std::size_t predict) {
    auto params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    const context_ptr context(llama_init_from_model(model, params));
    run r;
    if (!context) return {.good = false};
    std::vector<llama_token> fed(prompt);
    for (std::size_t i = 0; i < prompt; ++i) fed[i] = static_cast<llama_token>(261 + i * i * 7 % 251);
    while (r.good && r.tokens.size() < predict) {
        r.good = llama_decode(context.get(),
                              llama_batch_get_one(fed.data(), static_cast<std::int32_t>(fed.size()))) == 0;
        const float* logits = llama_get_logits_ith(context.get(), -1);
        if (!r.good || logits == nullptr) return {.good = false};
        std::vector<float> sorted(logits, logits + tiny_models::vocabulary);
        if (r.tokens.empty()) {
            double sum = 0, squares = 0;
            for (std::size_t i = 261; i < sorted.size(); ++i)
                sum += sorted[i], squares += double(sorted[i]) * sorted[i];
            const double n = static_cast<double>(sorted.size() - 261);
            r.deviation = std::sqrt(squares / n - sum / n * sum / n);
        }
        r.tokens.push_back(
            static_cast<llama_token>(std::max_element(sorted.begin(), sorted.end()) - sorted.begin()));
        std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
        r.margins.push_back(sorted[0] - sorted[1]);
        fed.assign(1, r.tokens.back());
    }
    return r;
}

} // namespace

TEST_CASE("llama.cpp runs them, twice alike, and the text varies") {
    const kvtl_test::scratch_folder folder;
    for (const auto& architecture : tiny_models::runnable())
        for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K}) {
            CAPTURE(architecture);
            CAPTURE(std::string(ggml_type_name(type)));
            const std::string path = folder.file("model.gguf");
            REQUIRE(tiny_models::write(path, {.architecture = architecture, .type = type}));
            const auto model = load(path);
            REQUIRE(model);
            CHECK(llama_model_n_swa(model.get()) == (architecture.starts_with("g") ? 24 : 0));
            const run first = generate(model.get(), 60, 40);
            const run second = generate(model.get(), 60, 40);
            REQUIRE(first.good);
            CHECK(first.tokens == second.tokens);
            const std::set<llama_token> different(first.tokens.begin(), first.tokens.end());
            const auto near =
                std::count_if(first.margins.begin(), first.margins.end(), [](float m) { return m < .04F; });
            CAPTURE(near);
            CHECK(different.size() >= 7);
            CHECK(first.deviation > 2.5);
            CHECK(first.deviation < 6);
            CHECK(near <= 6);
            CHECK(*std::min_element(first.tokens.begin(), first.tokens.end()) > 4); // nothing special
        }
}

TEST_CASE("those that have to be refused run in llama.cpp itself") {
    const kvtl_test::scratch_folder folder;
    for (const auto& architecture : tiny_models::refused()) {
        CAPTURE(architecture);
        const std::string path = folder.file("model.gguf");
        REQUIRE(tiny_models::write(path, {.architecture = architecture, .type = GGML_TYPE_Q8_0}));
        const auto model = load(path);
        REQUIRE(model);
        if (architecture == "bert") continue; // no logits
        CHECK(llama_model_is_hybrid(model.get()) == (architecture == "lfm2"));
        const run r = generate(model.get(), 40, 8);
        CHECK(r.good);
    }
}

TEST_CASE("the same options give the same file, another seed another one") {
    const kvtl_test::scratch_folder folder;
    const auto bytes = [&](const tiny_models::options& o) {
        REQUIRE(tiny_models::write(folder.file("model.gguf"), o));
        std::string all;
        if (std::FILE* f = std::fopen(folder.file("model.gguf").c_str(), "rb")) {
            char part[4096];
            for (std::size_t n = 0; (n = std::fread(part, 1, sizeof part, f)) > 0;) all.append(part, n);
            std::fclose(f);
        }
        return all;
    };
    const auto first = bytes({.layers = 1});
    CHECK(first.size() > 100000);
    CHECK(first == bytes({.layers = 1}));
    CHECK(first != bytes({.layers = 1, .seed = 2}));
    CHECK_FALSE(tiny_models::write(folder.file("model.gguf"), {.architecture = "none"}));
}

TEST_CASE("words and bytes are read and written") {
    const kvtl_test::scratch_folder folder;
    REQUIRE(tiny_models::write(folder.file("model.gguf"), {.layers = 1}));
    const auto model = load(folder.file("model.gguf"));
    REQUIRE(model);
    const llama_vocab* words = llama_model_get_vocab(model.get());
    const std::string text = "hello, banana \xC3\xA4\n!";
    std::vector<llama_token> ids(64);
    const int n =
        llama_tokenize(words, text.c_str(), static_cast<int>(text.size()), ids.data(), 64, true, true);
    REQUIRE(n > 4);
    CHECK(ids[0] == 1);
    char out[128];
    const int length = llama_detokenize(words, ids.data() + 1, n - 1, out, sizeof out, false, false);
    REQUIRE(length > 0);
    CHECK(std::string(out, static_cast<std::size_t>(length)) == text);
    CHECK(llama_vocab_is_eog(words, 2));
}

TEST_CASE("the attention of a larger model") {
    const kvtl_test::scratch_folder folder;
    REQUIRE(tiny_models::write(folder.file("model.gguf"), tiny_models::attention_of_1b()));
    const auto model = load(folder.file("model.gguf"));
    REQUIRE(model);
    CHECK(llama_model_n_ctx_train(model.get()) == 131072);
    CHECK(llama_model_n_head(model.get()) == 32);
    CHECK(llama_model_n_head_kv(model.get()) == 8);
    CHECK(generate(model.get(), 20, 4).good);
}
