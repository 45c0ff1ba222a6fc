// SPDX-License-Identifier: MIT
#include <kvtl/presets/pqcache.hpp>

#include "support/size_knob.hpp"

namespace pqcache_test {

using namespace kvtl_test;

namespace {

using cache_t = cache_of<kvtl::presets::pqcache>;

/// Of 256 tokens; beside sinks, window and the arriving token 8 are attended.
cache_t::config eight_chosen(const kvtl::shape& model) {
    cache_t::config c;
    c.shape = model;
    c.max_tokens = 256;
    c.attend_tokens = c.sink_tokens + c.window_tokens + 1 + 8;
    c.memory_bytes = std::size_t{4} << 20;
    return c;
}

} // namespace

TEST_CASE("pqcache with the budget for everything is dense attention over f16 entries") {
    equals_dense_in_short<cache_t>();
}

TEST_CASE("pqcache: what one query head of a group wants is chosen, however little the other does") {
    constexpr kvtl::shape one{1, 2, 1, 16};
    constexpr std::size_t tokens = 200, wanted = 50;
    auto cache = open_cache<cache_t>(eight_chosen(one));
    const auto seq = *cache.begin();
    // All keys are alike but one. Its logits are 30 and -40: least on average, all of the first head's attention.
    std::vector<float> q(tokens * 32, 0.0F), k(tokens * 16, 0.0F), v(k), out(q);
    for (std::size_t t = 0; t < tokens; ++t) k[t * 16 + 1] = 1.0F;
    k[wanted * 16] = 4.0F;
    v[wanted * 16] = 1.0F;
    kvtl::layer_input in;
    in.q = q, in.k = k, in.v = v;
    require_ok(cache.prefill(seq, 0, in, out));
    q[0] = 30.0F, q[16] = -40.0F;
    in.q = std::span(q).first(32), in.k = std::span(k).first(16), in.v = std::span(v).first(16);
    require_ok(cache.attend(seq, 0, in, std::span(out).first(32)));
    CHECK(out[0] > 0.99F);
    CHECK(out[16] < 0.01F);
}

TEST_CASE("pqcache: sinks, which are never scored, take no centroid from what is") {
    constexpr kvtl::shape one{1, 1, 1, 16};
    constexpr std::size_t tokens = 200, wanted = 100; // on to 120: between the sinks and the window
    auto c = eight_chosen(one);
    c.index.parts = 1;
    c.index.bits = 1; // two centroids: enough for two kinds of keys, unless the sinks take one
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    std::vector<float> q(tokens * 16, 0.0F), k(q), v(q), out(q);
    for (std::size_t t = 0; t < tokens; ++t) {
        const bool want = t >= wanted && t < wanted + 20;
        if (t < c.sink_tokens)
            k[t * 16 + 2] = t % 2 == 0 ? 100.0F : -100.0F;
        else
            k[t * 16 + (want ? 1 : 0)] = 1.0F;
        v[t * 16] = want ? 1.0F : 0.0F;
    }
    kvtl::layer_input in;
    in.q = q, in.k = k, in.v = v;
    require_ok(cache.prefill(seq, 0, in, out));
    q[1] = 60.0F;
    in.q = std::span(q).first(16), in.k = std::span(k).last(16), in.v = std::span(v).last(16);
    require_ok(cache.attend(seq, 0, in, std::span(out).first(16)));
    CHECK(out[0] > 0.99F);
}

} // namespace pqcache_test
