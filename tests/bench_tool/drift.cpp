// The generator: the same numbers for the same question, whatever was asked before, and the structure that it
// promises.
// SPDX-License-Identifier: MIT
#include "drift.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <vector>

using bench::drift;

namespace {

constexpr kvtl::shape small = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 32};

struct block {
    std::vector<float> q, k, v, k_pre, prediction;

    block(drift& d, std::size_t sequence, std::uint32_t layer, std::size_t first, std::size_t count)
        : q(count * d.query_floats()), k(count * d.key_floats()), v(k.size()), k_pre(k.size()),
          prediction(q.size()) {
        d.rows(sequence, layer, first, count,
               {.q = q, .k = k, .v = v, .k_pre = k_pre, .prediction = prediction});
    }
    friend bool operator==(const block&, const block&) = default;
};

double dot(const float* a, const float* b, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
}

} // namespace

TEST_CASE("a token is the same however it is asked for") {
    drift a(small, 100, 600, 2, 7);
    drift b(small, 100, 600, 2, 7);
    for (const std::uint32_t layer : {2U, 0U}) {
        const block whole(a, 1, layer, 0, 600);
        for (const std::size_t token : {599U, 0U, 41U, 300U}) {
            const block one(b, 1, layer, token, 1); // without the tokens before it
            for (std::size_t i = 0; i < one.q.size(); ++i)
                CHECK(one.q[i] == whole.q[token * one.q.size() + i]);
            for (std::size_t i = 0; i < one.k.size(); ++i) {
                CHECK(one.k[i] == whole.k[token * one.k.size() + i]);
                CHECK(one.v[i] == whole.v[token * one.v.size() + i]);
                CHECK(one.k_pre[i] == whole.k_pre[token * one.k.size() + i]);
            }
            CHECK(one.prediction[3] == whole.prediction[token * one.q.size() + 3]);
        }
        std::vector<float> keys(600 * a.key_floats());
        a.rows(1, layer, 0, 600, {.k = keys}); // alone, without anything else
        CHECK(keys == whole.k);
    }
}

TEST_CASE("a longer text begins like the shorter one") {
    drift a(small, 100, 300, 1, 7);
    drift b(small, 100, 900, 1, 7);
    CHECK(block(a, 0, 1, 0, 300) == block(b, 0, 1, 0, 300));
}

TEST_CASE("seeds, sequences, layers and heads differ") {
    drift a(small, 100, 300, 2, 7);
    drift b(small, 100, 300, 2, 8);
    const block first(a, 0, 1, 100, 50);
    CHECK_FALSE(first.k == block(b, 0, 1, 100, 50).k);
    CHECK_FALSE(first.k == block(a, 1, 1, 100, 50).k);
    CHECK_FALSE(first.k == block(a, 0, 2, 100, 50).k);
    CHECK_FALSE(std::equal(first.k.begin(), first.k.begin() + 32, first.k.begin() + 32));
    CHECK(first == block(a, 2, 1, 100, 50)); // a sequence that is not there is the first one
}

TEST_CASE("keys are rotated, and rotation keeps lengths") {
    drift d(small, 100, 300, 1, 7);
    const block b(d, 0, 0, 0, 300);
    for (const std::size_t token : {0U, 1U, 200U}) {
        const float* k = b.k.data() + token * 64;
        const float* pre = b.k_pre.data() + token * 64;
        CHECK(dot(k, k, 32) == doctest::Approx(dot(pre, pre, 32)).epsilon(1e-4));
        // The fastest pair turns by one radian per token.
        const double turned = std::atan2(k[1], k[0]) - std::atan2(pre[1], pre[0]);
        CHECK(std::cos(turned - static_cast<double>(token)) == doctest::Approx(1).epsilon(1e-4));
    }
}

TEST_CASE("the predicted query has the cosine that was asked for") {
    for (const double wanted : {0.5, 0.95, 1.0}) {
        drift d(small, 100, 400, 1, 7, {.prediction = wanted});
        const block b(d, 0, 1, 0, 400);
        double sum = 0;
        for (std::size_t row = 0; row < 1600; ++row) {
            const float *q = b.q.data() + row * 32, *p = b.prediction.data() + row * 32;
            sum += dot(q, p, 32) / std::sqrt(dot(q, q, 32) * dot(p, p, 32));
        }
        CHECK(sum / 1600 == doctest::Approx(wanted).epsilon(0.02));
    }
}

TEST_CASE("topics come in bursts, and old ones come back") {
    drift d(small, 100, 20'000, 1, 7, {.burst = 10, .fresh = 0.2});
    std::map<std::uint32_t, std::size_t> tokens, bursts;
    std::uint32_t last = 1U << 31;
    std::size_t changes = 0;
    for (std::size_t t = 0; t < d.tokens(); ++t) {
        const std::uint32_t topic = d.topic_of(0, t);
        if (topic != last) ++bursts[topic], ++changes;
        ++tokens[topic];
        last = topic;
    }
    CHECK(tokens.size() > 200); // a fifth of about 2,000 bursts
    CHECK(tokens.size() < 600);
    CHECK(20'000 / changes >= 7); // mean length, a little more where a topic follows itself
    CHECK(20'000 / changes <= 16);
    CHECK(bursts[0] > 20);                  // the oldest is the most popular
    CHECK(bursts[0] > 5 * bursts[150] + 5); // by far
}

TEST_CASE("queries look for sinks, for what is near and for their topic") {
    // One knob at a time: the logits of what it is about must stand out.
    const auto logits = [](const bench::drift_config& c, std::size_t token) {
        drift d(small, 100, 1000, 1, 7, c);
        const block keys(d, 0, 0, 0, token + 1);
        const block query(d, 0, 0, token, 1);
        std::vector<double> all(token + 1);
        for (std::size_t t = 0; t <= token; ++t)
            all[t] = dot(query.q.data(), keys.k.data() + t * 64, 32) / std::sqrt(32.0);
        return all;
    };
    bench::drift_config none;
    none.sink_logit = none.near_logit = none.topic_logit = none.focus_logit = none.noise_logit = 0;
    none.sinks = 1, none.variety = 0;

    auto c = none;
    c.sink_logit = 5;
    const auto sink = logits(c, 900);
    CHECK(sink[0] == doctest::Approx(5).epsilon(0.2)); // slow pairs: hardly turned away at this distance
    for (std::size_t t = 1; t <= 900; ++t) CHECK(std::abs(sink[t]) < 4);

    c = none;
    c.near_logit = 5;
    const auto near = logits(c, 900);
    CHECK(near[900] > 2.5);
    double far = 0;
    for (std::size_t t = 100; t < 600; ++t) far += near[t] / 500;
    CHECK(std::abs(far) < 1);

    c = none;
    c.topic_logit = 5;
    drift d(small, 100, 1000, 1, 7, c);
    const auto topic = logits(c, 900);
    double same = 0, other = 0;
    std::size_t n_same = 0, n_other = 0;
    for (std::size_t t = 1; t <= 900; ++t)
        if (d.topic_of(0, t) == d.topic_of(0, 900) && t > 600)
            same += topic[t], ++n_same;
        else if (d.topic_of(0, t) != d.topic_of(0, 900))
            other += topic[t], ++n_other;
    REQUIRE(n_same > 0);
    REQUIRE(n_other > 0);
    CHECK(same / static_cast<double>(n_same) > other / static_cast<double>(n_other) + 1);
}
