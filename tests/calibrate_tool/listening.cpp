// What a listening_cache lets one hear is what the model really computes.
// SPDX-License-Identifier: MIT
#include "dense_cache.hpp"
#include "error.hpp"
#include "fingerprint.hpp"
#include "listening_cache.hpp"
#include "random_model.hpp"
#include "transformer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

using namespace engine;

namespace {

/// A model in a file that is gone with the test.
struct model_file {
    std::string path = "listening-" + std::to_string(::getpid()) + ".gguf";
    explicit model_file(random_model spec) { spec.build().write(path); }
    ~model_file() { std::remove(path.c_str()); }
    model_file(const model_file&) = delete;
    model_file& operator=(const model_file&) = delete;
};

std::vector<token_id> some_tokens(std::size_t n) {
    std::vector<token_id> ids;
    for (std::size_t i = 0; i < n; ++i) ids.push_back(static_cast<token_id>(i * 37 % 256));
    return ids;
}

} // namespace

TEST_CASE("in blocks, each is read as if nothing came before it") {
    const model_file written(random_model{});
    const gguf_file file(written.path);
    const model weights(file);
    thread_pool pool(1);
    const auto ids = some_tokens(100);
    std::vector<std::vector<float>> inputs(weights.hyper().shape.layers);
    listening_cache listening(weights.hyper().shape, false,
                              [&](std::uint32_t layer, const kvtl::layer_input& in) {
                                  inputs[layer].assign(in.x.begin(), in.x.end());
                                  return kvtl::status();
                              });
    transformer run(weights, listening, pool, ids.size());
    const auto read = [&](std::span<const token_id> some, std::size_t block) {
        listening.divide(block);
        run.begin();
        static_cast<void>(run.prefill(some));
        return inputs;
    };
    const auto whole = read(ids, 0), halves = read(ids, 60);
    const auto first = read(std::span(ids).first(60), 0), second = read(std::span(ids).subspan(60), 0);
    const std::size_t width = weights.hyper().width;
    for (std::size_t l = 0; l < inputs.size(); ++l) {
        double error = 0, change = 0;
        for (std::size_t i = 0; i < halves[l].size(); ++i) {
            const float alone =
                i < 60 * width ? first[l][i] : second[l][i - 60 * width]; // positions are relative
            error =
                std::max(error, std::fabs(static_cast<double>(halves[l][i]) - static_cast<double>(alone)));
            change = std::max(
                change, std::fabs(static_cast<double>(halves[l][i]) - static_cast<double>(whole[l][i])));
        }
        CHECK(error < 1e-3);
        CHECK((change > 0.02) == (l > 0));
    }
}

TEST_CASE("logits, keys and queries are those of the exact forward pass") {
    random_model spec;
    const model_file written(spec);
    const gguf_file file(written.path);
    const model weights(file);
    const auto& shape = weights.hyper().shape;
    thread_pool pool(1);
    const auto ids = some_tokens(100);

    std::map<std::uint32_t, std::vector<float>> keys, before_rope, queries;
    listening_cache listening(shape, true, [&](std::uint32_t layer, const kvtl::layer_input& in) {
        keys[layer].assign(in.k.floats().begin(), in.k.floats().end());
        before_rope[layer].assign(in.k_pre.begin(), in.k_pre.end());
        queries[layer].assign(in.q.floats().begin(), in.q.floats().end());
        return kvtl::status();
    });
    transformer run(weights, listening, pool, ids.size());
    run.begin();
    const auto heard = run.prefill(ids);

    cache_options options;
    options.shape = shape;
    options.max_tokens = ids.size();
    dense_cache exact(options);
    transformer reference(weights, exact, pool, ids.size());
    reference.begin();
    const auto expected = reference.prefill(ids);
    REQUIRE(heard.size() == expected.size());
    for (std::size_t i = 0; i < heard.size(); ++i)
        CHECK(heard[i] == doctest::Approx(expected[i]).epsilon(1e-4));

    const std::size_t key_row = shape.kv_heads * shape.head_dim;
    REQUIRE(keys.size() == shape.layers);
    for (std::uint32_t l = 0; l < shape.layers; ++l) {
        REQUIRE(keys[l].size() == ids.size() * key_row);
        REQUIRE(before_rope[l].size() == ids.size() * key_row);
        REQUIRE(queries[l].size() == ids.size() * shape.query_heads * shape.head_dim);
        for (std::size_t i = 0; i < key_row; ++i) CHECK(keys[l][i] == before_rope[l][i]); // position 0
        CHECK(keys[l] != before_rope[l]);
    }
}

TEST_CASE("what the listener refuses ends the run, and a prompt in chunks is refused") {
    const model_file written{random_model{}};
    const gguf_file file(written.path);
    const model weights(file);
    thread_pool pool(1);
    listening_cache broken(weights.hyper().shape, false, [](std::uint32_t, const kvtl::layer_input&) {
        return kvtl::status::failure(kvtl::errc::unsupported, "too much");
    });
    transformer run(weights, broken, pool, 64);
    run.begin();
    CHECK_THROWS_WITH_AS(static_cast<void>(run.prefill(some_tokens(10))), "too much", run_failure);

    listening_cache fine(weights.hyper().shape, false,
                         [](std::uint32_t, const kvtl::layer_input&) { return kvtl::status(); });
    transformer pieces(weights, fine, pool, 4);
    pieces.begin();
    CHECK_THROWS_AS(static_cast<void>(pieces.prefill(some_tokens(10))), run_failure);
}

TEST_CASE("the fingerprint tells models of one shape apart") {
    random_model one, other;
    other.seed = 8;
    const auto of = [](const random_model& spec) {
        const model_file written(spec);
        const gguf_file file(written.path);
        return fingerprint_of(model(file));
    };
    CHECK(of(one) == of(one));
    CHECK(of(one) != of(other));
    CHECK(of(one) != 0);
}
