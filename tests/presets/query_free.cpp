// Presets that rank entries without the prompt's queries, and those that somebody else decides for.
// SPDX-License-Identifier: MIT
#include <kvtl/presets/engine_decides.hpp>
#include <kvtl/presets/query_free.hpp>

#include "support/eviction.hpp"

namespace query_free_test {

using namespace kvtl_test;

namespace {
constexpr kvtl::shape small{2, 4, 2, 32};
constexpr std::size_t prompt = 150;

template <class Cache> typename Cache::config sized(std::size_t keep) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = 400;
    c.memory_bytes = std::size_t{16} << 20;
    c.keep_tokens = keep;
    c.window_tokens = 8;
    c.sink_tokens = 4;
    return c;
}
double norm(const float* x) {
    return std::sqrt(oracle::dot(x, x, small.head_dim));
}
/// Score of every token of a lane, by definition.
using definition = std::function<scores_t(std::size_t layer, std::size_t head)>;

template <class Cache>
void check(const drift& data, const definition& scores, const decorate& more = {},
           const typename Cache::config& config = sized<Cache>(52)) {
    CAPTURE(std::string(Cache::preset::name));
    for (const std::size_t chunk : {150U, 41U}) {
        auto cache = open_cache<Cache>(config);
        const auto seq = *cache.begin();
        feed_prompt(cache, seq, data, prompt, chunk, more);
        const naive truth(data, 4, 8);
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t h = 0; h < 2; ++h) CHECK(kept(cache, seq, l, h) == truth.best(scores(l, h), 40));
        for (std::size_t t = prompt; t < prompt + 20; ++t)
            CHECK(decode_and_compare(cache, seq, data, t, more) < exact);
    }
}

} // namespace

TEST_CASE("knorm: the smallest keys stay, in decode as well") {
    const drift data(small, 400, 31);
    using cache_t = precise<kvtl::presets::knorm>;
    const auto scores = [&](std::size_t n) {
        return [&, n](std::size_t l, std::size_t h) {
            scores_t s;
            for (std::size_t t = 0; t < n; ++t) s.push_back(-norm(data.key(l, t, h)));
            return s;
        };
    };
    check<cache_t>(data, scores(prompt));
    auto cache = open_cache<cache_t>(sized<cache_t>(52));
    const auto seq = *cache.begin();
    for (std::size_t t = 0; t < 200; ++t) static_cast<void>(decode_and_compare(cache, seq, data, t));
    // What leaves the window competes with what is held: in the end the best of all are left, but the loser
    // of a comparison has left for good, which changes nothing while scores do not change.
    const naive truth(data, 4, 8);
    CHECK(kept(cache, seq, 1, 1) == truth.best(scores(200)(1, 1), 40));
}

TEST_CASE("keydiff: keys that differ from the mean direction stay") {
    const drift data(small, 400, 32);
    check<precise<kvtl::presets::keydiff>>(data, [&](std::size_t l, std::size_t h) {
        scores_t mean(small.head_dim, 0.0), s;
        for (std::size_t t = 0; t < prompt; ++t)
            for (std::size_t d = 0; d < small.head_dim; ++d)
                mean[d] += static_cast<double>(data.key(l, t, h)[d]) / norm(data.key(l, t, h));
        const double size = std::sqrt(std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0));
        for (std::size_t t = 0; t < prompt; ++t) {
            double dot = 0;
            for (std::size_t d = 0; d < small.head_dim; ++d)
                dot += mean[d] * static_cast<double>(data.key(l, t, h)[d]);
            s.push_back(-dot / size / norm(data.key(l, t, h)));
        }
        return s;
    });
}

TEST_CASE("lagkv: entries that stand out against the next block stay") {
    const drift data(small, 400, 33);
    using cache_t = precise<kvtl::presets::lagkv>;
    constexpr std::size_t lag = 12,
                          dim = small.head_dim; // a quarter of the 48 that are kept behind the sinks
    check<cache_t>(data, [&](std::size_t l, std::size_t h) {
        scores_t s;
        for (std::size_t t = 0; t < prompt; ++t) s.push_back(1.0 + static_cast<double>(t));
        const std::size_t blocks = (prompt - 4) / lag;
        for (std::size_t b = 0; b + 1 < blocks; ++b) {
            scores_t sum(lag, 0.0);
            for (const bool keys : {true, false}) {
                const auto x = [&](std::size_t i, std::size_t d) {
                    const std::size_t t = 4 + b * lag + i;
                    return static_cast<double>((keys ? data.key(l, t, h) : data.value(l, t, h))[d]);
                };
                scores_t deviation;
                for (std::size_t i = 0; i < lag; ++i) {
                    double mean = 0, square = 0;
                    for (std::size_t d = 0; d < dim; ++d) {
                        double low = 1e300, high = -1e300;
                        for (std::size_t j = lag; j < 2 * lag; ++j) {
                            low = std::min(low, x(j, d));
                            high = std::max(high, x(j, d));
                        }
                        const double place = (x(i, d) - low) / (high - low);
                        mean += place / dim, square += place * place / dim;
                    }
                    deviation.push_back(std::sqrt(square - mean * mean));
                }
                double all = 0;
                for (const double d : deviation) all += std::exp(d);
                for (std::size_t i = 0; i < lag; ++i) sum[i] += std::exp(deviation[i]) / all;
            }
            for (std::size_t i = 0; i < lag; ++i)
                s[4 + b * lag + i] = static_cast<double>(std::count_if(
                                         sum.begin(), sum.end(), [&](double o) { return o < sum[i]; })) /
                                     lag;
        }
        return s;
    });
    // Too short a prompt for two blocks behind the sinks: the latest stay.
    auto config = sized<cache_t>(6);
    config.window_tokens = 1;
    auto cache = open_cache<cache_t>(config);
    const auto seq = *cache.begin();
    feed_prompt(cache, seq, data, 7);
    CHECK(kept(cache, seq, 0, 0) == tokens_t{0, 1, 2, 3, 5, 6});
}

TEST_CASE("external_scores and external_mask: the engine decides") {
    const drift data(small, 400, 34);
    const auto given = oracle::normal_values(2 * 400 * 2, 35); // (L, T, H)
    const decorate hand_over = [&](kvtl::layer_input& in, std::size_t l, std::size_t first, std::size_t n) {
        in.external = std::span(given).subspan((l * 400 + first) * 2, n * 2);
    };
    using ranked = kvtl::external_scores_cache;
    const auto score = [&](std::size_t l, std::size_t h) {
        scores_t s;
        for (std::size_t t = 0; t < prompt; ++t)
            s.push_back(static_cast<double>(given[(l * 400 + t) * 2 + h]));
        return s;
    };
    auto config = sized<ranked>(52);
    auto cache = open_cache<ranked>(config);
    auto seq = *cache.begin();
    feed_prompt(cache, seq, data, prompt, 50, hand_over);
    const naive truth(data, 4, 8);
    CHECK(kept(cache, seq, 1, 0) == truth.best(score(1, 0), 40));

    using masked = kvtl::external_mask_cache;
    auto roomy = sized<masked>(300); // room for everything: the mask alone decides
    auto gate = open_cache<masked>(roomy);
    seq = *gate.begin();
    feed_prompt(gate, seq, data, prompt, 50, hand_over);
    std::vector<float> out(data.query_floats());
    for (std::size_t t = prompt; t <= 250; ++t)
        for (std::size_t l = 0; l < 2; ++l) {
            if (t == prompt || t == 250) {
                tokens_t expected;
                for (std::uint32_t i = 0; i < t; ++i)
                    if (i < 4 || i + 8 >= t || given[(l * 400 + i) * 2 + 1] > 0.0F) expected.push_back(i);
                CHECK(kept(gate, seq, l, 1) == expected);
            }
            auto in = data.input(l, t);
            hand_over(in, l, t, 1);
            require_ok(gate.attend(seq, l, in, out));
        }
}

namespace {
using probed = kvtl::kv_manager<in_f32<kvtl::presets::lookahead_probe>,
                                kvtl::engine_inputs_for<kvtl::presets::lookahead_probe>>;
} // namespace

TEST_CASE("lookahead_probe: the engine's queries of the future rank the prompt") {
    const drift data(small, 400, 36);
    const decorate probes = [&](kvtl::layer_input& in, std::size_t l, std::size_t, std::size_t) {
        in.probe = data.q(l, 200, 6); // what later tokens will really ask
    };
    const naive truth(data, 4, 8);
    auto config = sized<probed>(52);
    check<probed>(
        data,
        [&](std::size_t l, std::size_t h) {
            scores_t mean(prompt, 0.0);
            for (std::size_t w = 0; w < 6; ++w)
                for (std::size_t g = 0; g < 2; ++g) {
                    const float* q = data.q(l, 200 + w).data() + (h * 2 + g) * small.head_dim;
                    const scores_t p = truth.softmax_over(l, h, q, naive::first(prompt));
                    for (std::size_t i = 0; i < prompt; ++i) mean[i] += p[i] / 12.0;
                }
            std::fill(mean.end() - 8, mean.end(), 0.0); // the window's
            return naive::average_pool(mean, 5);
        },
        probes, config);
}

TEST_CASE("lookahead_probe: what the window receives does not raise its neighbours") {
    // The probe asks for a token of the window most, for an early one a third as much, for all others hardly.
    constexpr kvtl::shape one{1, 1, 1, 16};
    constexpr std::uint32_t tokens = 64, early = 7;
    std::vector<float> q(tokens * 16, 0.0F), k(q), v(tokens * 16, 1.0F), probe(16, 0.0F), out(q);
    k[(tokens - 8) * 16] = 30.0F, k[early * 16] = 29.0F, probe[0] = 4.0F;
    probed::config c;
    c.shape = one;
    c.max_tokens = tokens;
    c.memory_bytes = std::size_t{4} << 20;
    c.keep_tokens = 10, c.window_tokens = 8, c.sink_tokens = 0;
    auto cache = open_cache<probed>(c);
    const auto seq = *cache.begin();
    kvtl::layer_input in;
    in.q = q, in.k = k, in.v = v, in.probe = probe;
    require_ok(cache.prefill(seq, 0, in, out));
    CHECK(kept(cache, seq, 0, 0) == tokens_t{5, 6, 56, 57, 58, 59, 60, 61, 62, 63});
}

} // namespace query_free_test
