// What a config of a static cache gets from the model and the settings, and what of it stays.
// SPDX-License-Identifier: MIT
#include "kvtl_llama_static.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

struct rotation {
    std::vector<double> frequencies{};
    std::uint32_t dims = 0;
    bool neighbours = false;
};

/// As a kv_manager's: two policies that turn keys.
struct config {
    kvtl::shape shape{};
    kvtl::attention_rule attention{};
    std::size_t max_tokens = 0, max_sequences = 1;
    unsigned shards = 1;
    kvtl::division shard_by = kvtl::division::heads;
    kvtl::engine_input engine_inputs{};
    rotation position{}, compressor{};
};

kvtl_llama::model_facts facts(std::vector<double> frequencies) {
    kvtl_llama::model_facts f;
    f.shape = {2, 8, 4, 64};
    f.rope_frequencies = std::move(frequencies);
    f.trained_context = 4096;
    return f;
}

unsigned shards(const config& c, unsigned threads, std::uint32_t sequences = 1) {
    const auto got =
        kvtl_llama::with_facts(c, facts({1, .1}), {.max_sequences = sequences, .threads = threads});
    REQUIRE(got.ok());
    return got->shards;
}

} // namespace

TEST_CASE("shards: as many as threads, up to what is divided, or what was asked for") {
    CHECK(shards({}, 3) == 3);
    CHECK(shards({}, 16, 8) == 4);
    CHECK(shards({.shard_by = kvtl::division::sequences}, 16, 8) == 8);
    CHECK(shards({.shard_by = kvtl::division::sequences}, 3, 8) == 3);
    CHECK(shards({.shards = 2}, 4) == 2);
}

TEST_CASE("angles: the model's, or those of the config for every policy that turns keys") {
    const auto model = kvtl_llama::with_facts(config{}, facts({1, .1}), {});
    REQUIRE(model.ok());
    CHECK(model->max_tokens == 4096);
    CHECK(model->position.dims == 4);
    CHECK(model->compressor.frequencies == std::vector<double>{1, .1});

    const rotation own{.frequencies = {1, .2}, .dims = 4};
    for (const bool position : {false, true})
        for (const bool compressor : {false, true}) {
            config c;
            if (position) c.position = own;
            if (compressor) c.compressor = own;
            const auto got = kvtl_llama::with_facts(c, facts({}), {});
            CHECK(got.ok() == (position && compressor));
            if (got)
                CHECK(got->position.frequencies == own.frequencies);
            else
                CHECK(got.error().message.find("valid: frequencies in the config") != std::string::npos);
        }
}
