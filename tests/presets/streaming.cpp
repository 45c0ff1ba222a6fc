// Presets of a fixed shape: the first tokens, the last ones, or any; and positions inside the cache.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/streaming.hpp>

#include "support/eviction.hpp"

namespace streaming_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};

template <class Cache> typename Cache::config sized(std::size_t keep, std::uint32_t window) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.window_tokens = window;
    return c;
}

} // namespace

TEST_CASE("sinks and window, window only: the last entries, in prompt and decode") {
    const drift data(small, 400, 4);
    const auto run = [&]<class Preset>(Preset, std::size_t sinks) {
        using cache_t = precise<Preset>;
        const auto c = sized<cache_t>(40, 1);
        auto cache = open_cache<cache_t>(c);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, 100, 30);
        for (std::size_t t = 100; t < 180; ++t) {
            if (t % 10 == 0) {
                tokens_t expected = naive::first(sinks);
                for (auto i = static_cast<std::uint32_t>(t - (40 - sinks)); i < t; ++i) expected.push_back(i);
                CHECK(kept(cache, seq, 1, 1) == expected);
            }
            CHECK(decode_and_compare(cache, seq, data, t) < exact);
        }
    };
    run(kvtl::presets::sink_and_window{}, 4);
    run(kvtl::presets::window_only{}, 0);
}

TEST_CASE("random_keep keeps its number and never a pinned entry less") {
    const drift data(small, 400, 5);
    using cache_t = precise<kvtl::presets::random_keep>;
    const auto c = sized<cache_t>(40, 8);
    auto cache = open_cache<cache_t>(c);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 100, 30);
    for (std::size_t t = 100; t < 200; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
    std::set<tokens_t> different;
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h) {
            const tokens_t held = kept(cache, seq, l, h);
            CHECK(held.size() == 40);
            CHECK(std::vector(held.begin(), held.begin() + 4) == naive::first(4));
            CHECK(held[32] == 192);
            different.insert(held);
        }
    CHECK(different.size() == 4);
}

TEST_CASE("random_decoded keeps the prompt, and of the rest any") {
    const drift data(small, 400, 5);
    using cache_t = precise<kvtl::presets::random_decoded>;
    auto cache = open_cache<cache_t>(sized<cache_t>(100, 8));
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 60, 25);
    for (std::size_t t = 60; t < 200; ++t) CHECK(decode_and_compare(cache, seq, data, t) < exact);
    std::set<tokens_t> different;
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t h = 0; h < 2; ++h) {
            const tokens_t held = kept(cache, seq, l, h);
            REQUIRE(held.size() == 100);
            CHECK(tokens_t(held.begin(), held.begin() + 60) == naive::first(60));
            CHECK(held[92] == 192); // the window
            different.insert(held);
        }
    CHECK(different.size() == 4);

    auto small_cache = open_cache<cache_t>(sized<cache_t>(40, 8)); // not even the prompt has room
    const auto other = *small_cache.begin();
    feed_prompt(small_cache, other, data, 60);
    for (std::size_t t = 60; t < 100; ++t) CHECK(decode_and_compare(small_cache, other, data, t) < exact);
    const tokens_t held = kept(small_cache, other, 0, 0);
    CHECK(held.size() == 40);
    CHECK(std::count_if(held.begin(), held.end(), [](std::uint32_t t) { return t < 60; }) == 32);
}

TEST_CASE("streaming_llm: positions inside the cache, step by step") {
    constexpr std::size_t dim = 32, prompt = 60, end = 140, keep = 24;
    const drift data(small, 600, 15); // q and k before rotation
    const auto rotated = [&](const float* x, double position, std::size_t dims, bool neighbours) {
        scores_t out(x, x + dim);
        for (std::size_t i = 0; i < dims / 2; ++i) {
            const double angle =
                position * std::pow(500.0, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
            const std::size_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + dims / 2;
            out[a] =
                static_cast<double>(x[a]) * std::cos(angle) - static_cast<double>(x[b]) * std::sin(angle);
            out[b] =
                static_cast<double>(x[b]) * std::cos(angle) + static_cast<double>(x[a]) * std::sin(angle);
        }
        return out;
    };
    using cache_t = precise<kvtl::presets::streaming_llm>;
    for (const std::size_t dims : {32U, 20U})
        for (const bool neighbours : {false, true}) {
            auto config = sized<cache_t>(keep, 1);
            config.position = {
                .base = 500.0, .dims = static_cast<std::uint32_t>(dims), .neighbours = neighbours};
            auto cache = open_cache<cache_t>(config);
            const auto seq = *cache.begin();
            oracle::largest_error error;
            for (std::size_t t = 0; t < end; ++t)
                for (std::size_t l = 0; l < 2; ++l) {
                    const auto turned = [&](std::span<const float> heads) {
                        std::vector<float> all;
                        for (std::size_t h = 0; h < heads.size() / dim; ++h)
                            for (const double x :
                                 rotated(&heads[h * dim], static_cast<double>(t), dims, neighbours))
                                all.push_back(static_cast<float>(x));
                        return all;
                    };
                    const std::vector<float> q = turned(data.q(l, t)), k = turned(data.k(l, t));
                    kvtl::layer_input in;
                    in.q = q, in.k = k, in.v = data.v(l, t);
                    std::vector<float> out(data.query_floats());
                    in.last_chunk = t + 1 == prompt;
                    if (t < prompt) {
                        require_ok(cache.prefill(seq, l, in, out));
                        continue;
                    }
                    tokens_t held = kept(cache, seq, l, 0);
                    held.push_back(static_cast<std::uint32_t>(t));
                    require_ok(cache.attend(seq, l, in, out));
                    for (std::size_t hq = 0; hq < 4; ++hq) { // keys at 0, 1, ..., the query at the last place
                        const scores_t query =
                            rotated(data.q(l, t).data() + hq * dim, static_cast<double>(held.size() - 1),
                                    dims, neighbours);
                        scores_t p;
                        for (std::size_t i = 0; i < held.size(); ++i) {
                            const scores_t key = rotated(data.key(l, held[i], hq / 2), static_cast<double>(i),
                                                         dims, neighbours);
                            double dot = 0;
                            for (std::size_t d = 0; d < dim; ++d) dot += query[d] * key[d];
                            p.push_back(std::exp(dot / std::sqrt(static_cast<double>(dim))));
                        }
                        const double sum = std::accumulate(p.begin(), p.end(), 0.0);
                        for (std::size_t d = 0; d < dim; ++d) {
                            double expected = 0;
                            for (std::size_t i = 0; i < held.size(); ++i)
                                expected +=
                                    p[i] / sum * static_cast<double>(data.value(l, held[i], hq / 2)[d]);
                            error.see(static_cast<double>(out[hq * dim + d]) - expected);
                        }
                    }
                }
            CHECK(error.value() < 5e-5); // q and k come rounded to float
            tokens_t expected = naive::first(4);
            for (std::uint32_t i = end - (keep - 4); i < end; ++i) expected.push_back(i);
            CHECK(kept(cache, seq, 1, 1) == expected);
        }
}

TEST_CASE("everything kept is dense attention") {
    const drift data(small, 400, 6);
    const auto run = [&]<class Preset>(Preset) {
        const auto c = sized<precise<Preset>>(400, kvtl::automatic);
        auto cache = open_cache<precise<Preset>>(c);
        reader one(cache, data);
        one.prefill(90, 40);
        one.decode(40);
        one.prefill(20); // a further turn
        one.decode(20);
        CHECK(one.error() < exact);
        one.check_tokens();
    };
    run(kvtl::presets::sink_and_window{});
    run(kvtl::presets::window_only{});
    run(kvtl::presets::streaming_llm{});
    run(kvtl::presets::random_keep{});
    run(kvtl::presets::random_decoded{});
}

} // namespace streaming_test
