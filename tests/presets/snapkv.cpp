// Presets that look once: what they keep is what their definition keeps.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/snapkv.hpp>

#include "support/eviction.hpp"

namespace snapkv_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};

template <class Cache> typename Cache::config sized(std::size_t keep, unsigned shards = 1) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.window_tokens = 16;
    c.shards = shards;
    return c;
}

} // namespace

TEST_CASE("snapkv keeps what pooled window attention ranks first, however the prompt is cut") {
    const drift data(small, 400, 3);
    const naive truth(data, 0, 16);
    const auto run = [&]<class Preset>(Preset, std::size_t chunk, unsigned shards) {
        using cache_t = precise<Preset>;
        auto cache = open_cache<cache_t>(sized<cache_t>(48, shards));
        const auto seq = *cache.begin();
        double error = 0;
        feed_prompt(cache, seq, data, 150, chunk, {}, &error);
        CHECK(error < exact);
        for (std::size_t l = 0; l < small.layers; ++l)
            for (std::size_t i = 0; i < lanes_per_layer(cache); ++i) {
                const auto sum = [&](std::size_t hq) { return truth.window_sum(l, hq, 150); };
                const scores_t raw =
                    Preset::retention::score::per_query_head ? sum(i) : truth.group_mean(i, sum);
                CHECK(kept(cache, seq, l, i) == truth.best(naive::average_pool(raw, 5), 32));
            }
        CHECK(rows_held(cache, seq) == 48 * lanes_per_layer(cache) * small.layers);
        for (std::size_t t = 150; t < 170; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
        CHECK(rows_held(cache, seq) == 68 * lanes_per_layer(cache) * small.layers); // decoded ones stay
        CHECK(cache.tokens(seq, 1) == 170);
    };
    for (const std::size_t chunk : {150U, 64U, 7U})
        for (const unsigned shards : {1U, 2U}) {
            CAPTURE(chunk);
            CAPTURE(shards);
            run(kvtl::presets::snapkv_group{}, chunk, shards);
            run(kvtl::presets::snapkv_qhead{}, chunk, shards);
        }
}

TEST_CASE("everything kept is dense attention") {
    const drift data(small, 400, 6);
    const auto run = [&]<class Preset>(Preset) {
        auto c = sized<precise<Preset>>(400);
        auto cache = open_cache<precise<Preset>>(c);
        reader one(cache, data);
        one.prefill(90, 40);
        one.decode(40);
        one.prefill(20); // a further turn
        one.decode(20);
        CHECK(one.error() < exact);
        one.check_tokens();
    };
    run(kvtl::presets::snapkv_group{});
    run(kvtl::presets::snapkv_qhead{});
    run(kvtl::presets::expected_attention{});
    run(kvtl::presets::r_kv{});
}

} // namespace snapkv_test
