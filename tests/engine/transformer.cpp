// The forward pass of every architecture and weight type against the double-precision one of
// random_model.hpp.
// SPDX-License-Identifier: MIT
#include "transformer.hpp"

#include "calibrate/listening_cache.hpp"
#include "dense_cache.hpp"
#include "error.hpp"
#include "model.hpp"
#include "random_model.hpp"
#include "recomputer.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>

namespace {

using namespace engine;

/// A file that is gone with the test.
struct model_file {
    std::string path;
    explicit model_file(const gguf_writer& w) : path("transformer-" + std::to_string(::getpid()) + ".gguf") {
        w.write(path);
    }
    ~model_file() { std::remove(path.c_str()); }
};

const std::vector<token_id> prompt = {72, 101, 257, 32, 119, 111, 258, 100, 33, 263, 5, 250, 17};
const std::vector<token_id> further = {104, 260, 7};

cache_options options_for(const model& m, unsigned shards) {
    cache_options o;
    o.shape = m.hyper().shape;
    o.max_tokens = 64;
    o.shards = shards;
    return o;
}

double distance(std::span<const float> a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0;
    for (std::size_t i = 0; i < b.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
    return worst;
}

void compare(random_model spec) {
    const model_file written(spec.build());
    const gguf_file file(written.path);
    const model weights(file);
    thread_pool pool(2);
    dense_cache cache(options_for(weights, 2));
    transformer run(weights, cache, pool, 5); // the prompt goes in three chunks
    run.share_layers(spec.owner);
    run.begin();

    auto ids = prompt;
    auto logits = run.prefill(ids);
    const auto expected = spec.logits(ids);
    double spread = 0;
    for (const double v : expected) spread = std::max(spread, std::abs(v));
    CHECK(spread > 0.5); // the comparison says something
    CHECK(distance(logits, expected) < 2e-4 * spread);
    CHECK(cache.last_chunks() == spec.layers);
    for (const auto id : further) {
        ids.push_back(id);
        logits = run.step(id);
        CHECK(distance(logits, spec.logits(ids)) < 2e-4 * spread);
    }
    CHECK(run.position() == ids.size());
}

} // namespace

TEST_CASE("every architecture equals an independent forward pass") {
    for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
        CAPTURE(architecture);
        random_model spec;
        spec.architecture = architecture;
        compare(spec);
        spec.tied = false;
        spec.seed = 8;
        compare(spec);
    }
}

TEST_CASE("layers that attend the keys and values of others equal an independent forward pass") {
    random_model spec;
    spec.architecture = "qwen3"; // normalises keys by weights of the layer
    spec.layers = 4;
    spec.owner = {0, 1, 0, 1};
    compare(spec);
    const model_file written(spec.build());
    const gguf_file file(written.path);
    const model weights(file);
    const auto logits_of = [&](const std::vector<std::uint32_t>& owner) {
        thread_pool pool(2);
        dense_cache cache(options_for(weights, 1));
        transformer run(weights, cache, pool);
        run.share_layers(owner);
        run.begin();
        const auto logits = run.prefill(prompt);
        return std::vector<float>(logits.begin(), logits.end());
    };
    CHECK(logits_of({0, 1, 2, 3}) == logits_of({}));
    CHECK(logits_of(spec.owner) != logits_of({}));
}

TEST_CASE("every weight type equals an independent forward pass") {
    for (const auto type : {tensor_type::f16, tensor_type::bf16, tensor_type::q8_0, tensor_type::q4_0}) {
        CAPTURE(type_name(type));
        random_model spec;
        spec.type = type;
        spec.tied = type != tensor_type::q4_0;
        compare(spec);
    }
}

TEST_CASE("partial rotation, frequency factors and one KV head per query head") {
    for (const char* architecture : {"llama", "qwen2"}) {
        CAPTURE(architecture);
        random_model spec;
        spec.architecture = architecture;
        spec.rotated = 16;
        spec.rope_factors = true;
        spec.kv_heads = 4;
        spec.rope_base = 500000;
        compare(spec);
    }
}

TEST_CASE("logits do not depend on threads or chunks, and rewind forgets") {
    random_model spec;
    spec.architecture = "qwen3";
    spec.type = tensor_type::f16;
    const model_file written(spec.build());
    const gguf_file file(written.path);
    const model weights(file);

    std::vector<float> first;
    for (const unsigned threads : {1U, 2U, 5U})
        for (const std::size_t chunk : {1U, 4U, 512U}) {
            thread_pool pool(threads);
            dense_cache cache(options_for(weights, 2));
            transformer run(weights, cache, pool, chunk);
            run.begin();
            const auto logits = run.prefill(prompt);
            if (first.empty()) first.assign(logits.begin(), logits.end());
            CHECK(std::equal(first.begin(), first.end(), logits.begin()));
            (void)run.step(9);
            (void)run.step(10);
            run.rewind(3); // the two steps and the prompt's last token
            const auto again = run.step(prompt.back());
            CHECK(std::equal(first.begin(), first.end(), again.begin()));
            run.begin(); // a new sequence knows nothing of the old one
            const auto fresh = run.prefill(prompt);
            CHECK(std::equal(first.begin(), first.end(), fresh.begin()));
        }
}

TEST_CASE("a recomputer gives the keys and values that the cache got, to the bit") {
    for (const char* architecture : {"llama", "qwen2", "qwen3"})
        for (const auto type : {tensor_type::f16, tensor_type::q8_0}) {
            CAPTURE(architecture);
            CAPTURE(type_name(type));
            random_model spec;
            spec.architecture = architecture;
            spec.type = type;
            const model_file written(spec.build());
            const gguf_file file(written.path);
            const model weights(file);
            recomputer again(weights, prompt.size());
            const kvtl::shape shape = weights.hyper().shape;
            std::size_t differ = 0, seen = 0;
            listening_cache ear(shape, false, [&](std::uint32_t layer, const kvtl::layer_input& in) {
                const std::vector<std::uint32_t> positions = {3, 4, 9}; // not all, and not from the first
                std::vector<float> x, out(positions.size() * shape.head_dim);
                for (const std::uint32_t t : positions) {
                    const auto row = in.x.subspan(t * again.width(), again.width());
                    x.insert(x.end(), row.begin(), row.end());
                }
                for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
                    for (const bool values : {false, true}) {
                        recomputer::recompute(&again, {layer, head, values, positions.size(),
                                                       positions.data(), x.data(), out.data()});
                        const auto rows = (values ? in.v : in.k).floats();
                        for (std::size_t i = 0; i < out.size(); ++i, ++seen)
                            differ += out[i] != rows[(positions[i / shape.head_dim] * shape.kv_heads + head) *
                                                         shape.head_dim +
                                                     i % shape.head_dim];
                    }
                return kvtl::status();
            });
            thread_pool pool(2);
            transformer run(weights, ear, pool);
            run.begin();
            (void)run.prefill(prompt);
            CHECK(differ == 0);
            CHECK(seen == std::size_t{2} * 3 * shape.layers * shape.kv_heads * shape.head_dim);
        }
}

TEST_CASE("what the cache wants is supplied, and nothing else") {
    random_model spec;
    spec.layers = 3;
    const model_file written(spec.build());
    const gguf_file file(written.path);
    const model weights(file);
    thread_pool pool(2);

    dense_cache plain(options_for(weights, 1));
    transformer quiet(weights, plain, pool);
    quiet.begin();
    const auto logits = quiet.prefill(prompt);
    const std::vector<float> expected(logits.begin(), logits.end());
    (void)quiet.step(1);
    CHECK(plain.prefetches() == 0);

    dense_cache curious(options_for(weights, 1));
    curious.want({kvtl::engine_input::k_pre | kvtl::engine_input::x, true});
    transformer run(weights, curious, pool);
    run.begin();
    const auto same = run.prefill(prompt);
    CHECK(std::equal(expected.begin(), expected.end(), same.begin()));
    CHECK(curious.prefetches() == 0); // a prompt reads nothing back
    (void)run.step(1);
    CHECK(curious.prefetches() == 2);
    REQUIRE(curious.last_guess().size() == 4 * 32);
    CHECK(std::abs(curious.last_guess()[0]) > 0.0F);
}

TEST_CASE("a failure of the cache ends the run with its words") {
    random_model spec;
    const model_file written(spec.build());
    const gguf_file file(written.path);
    const model weights(file);
    thread_pool pool(2);
    dense_cache cache(options_for(weights, 2));
    cache.fail_at(prompt.size() + 2);
    transformer run(weights, cache, pool);
    run.begin();
    (void)run.prefill(prompt);
    (void)run.step(1);
    CHECK_THROWS_WITH_AS((void)run.step(2), "no space for 15 tokens", run_failure);
    CHECK_THROWS_WITH_AS((void)run.step(4000), "token 4000 is not in the model", run_failure);
}
