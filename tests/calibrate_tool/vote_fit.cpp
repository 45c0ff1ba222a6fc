// Votes: the heads that look at what is repeated are found, the error of an eviction is that of its definition, and a file
// of votes gives back what was written or says why not.
// SPDX-License-Identifier: MIT
#include "vote_fit.hpp"

#include "key_drift.hpp"
#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

constexpr kvtl::shape model{.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 8};
constexpr std::size_t tokens = 300, dim = 8, span = 32, window = 8, before = tokens - span, copied = 100;

/// Keys of the tokens from `at` on have a large part in channel 0, `looks` is the one head that asks for it; all others
/// attend alike.
struct piece {
    std::vector<float> q, k, v;
    piece(std::size_t looks, std::size_t at, std::size_t n, std::uint64_t seed)
        : q(tokens * model.query_heads * dim),
          k(oracle::normal_values(tokens * model.kv_heads * dim, seed, 0.1)),
          v(oracle::normal_values(tokens * model.kv_heads * dim, seed + 1)) {
        for (std::size_t t = 0; t < tokens; ++t) {
            for (std::size_t h = 0; h < model.kv_heads; ++h)
                k[(t * model.kv_heads + h) * dim] = t >= at && t < at + n ? 4.0F : 0.0F;
            q[(t * model.query_heads + looks) * dim] = 6.0F;
        }
    }
    [[nodiscard]] kvtl::layer_input input() const {
        kvtl::layer_input in;
        in.q = q, in.k = k, in.v = v;
        return in;
    }
};

/// ||o - o'|| / ||o|| of the queries behind the window, where o' lacks what `present` says.
double error_by_definition(const piece& p, const std::vector<bool>& present) {
    double error = 0;
    for (std::size_t i = before + window; i < tokens; ++i) {
        double whole = 0, lost = 0;
        for (std::size_t h = 0; h < model.query_heads; ++h) {
            std::vector<double> o(dim), less(dim);
            double sum = 0, sum_less = 0;
            for (std::size_t t = 0; t <= i; ++t) {
                const float* value = &p.v[(t * 2 + h / 4) * dim];
                const double w = std::exp(
                    oracle::dot(&p.q[(i * 8 + h) * dim], &p.k[(t * 2 + h / 4) * dim], dim) / std::sqrt(8.0));
                sum += w, sum_less += present[t] ? w : 0;
                for (std::size_t d = 0; d < dim; ++d) {
                    o[d] += w * static_cast<double>(value[d]);
                    less[d] += present[t] ? w * static_cast<double>(value[d]) : 0;
                }
            }
            for (std::size_t d = 0; d < dim; ++d) {
                const double difference = o[d] / sum - less[d] / sum_less;
                whole += o[d] / sum * (o[d] / sum), lost += difference * difference;
            }
        }
        error += std::sqrt(lost / whole) / static_cast<double>(span - window);
    }
    return error;
}

} // namespace

TEST_CASE("the head that looks at the span, or beside it, votes for its layer") {
    engine::vote_fit fit(model);
    fit.look(0, piece(5, copied, span, 11).input(), copied);
    fit.look(1, piece(2, copied - 4, 4, 12).input(), copied); // neighbours count
    fit.settle();
    auto votes = fit.finish().votes;
    REQUIRE(votes.size() == 16);
    CHECK(std::accumulate(votes.begin(), votes.end(), 0) == 2);
    CHECK((votes[5] == 1 && votes[8 + 2] == 1));
    CHECK(fit.scores()[5] > 0.9);
    CHECK(fit.scores()[8 + 2] > 0.9);
    CHECK(fit.scores()[4] < 0.2); // 40 of 300 tokens get what they get from everybody

    engine::vote_fit far(
        model); // five tokens before the span is too far: this head sees less of it than the others
    for (std::uint32_t l = 0; l < 2; ++l) far.look(l, piece(3, copied - 9, 5, 13).input(), copied);
    far.settle();
    votes = far.finish().votes;
    CHECK((votes[3] == 0 && votes[8 + 3] == 0));
}

TEST_CASE("two heads vote where two are asked for, one in eight by default") {
    engine::vote_fit fit(model, {.voters = 2});
    for (std::uint32_t l = 0; l < 2; ++l) {
        auto p = piece(6, copied, span, 14);
        for (std::size_t t = 0; t < tokens; ++t)
            p.q[(t * 8 + 1) * dim] = 1.0F; // less sure, but more than the others
        fit.look(l, p.input(), copied);
    }
    fit.settle();
    const auto votes = fit.finish().votes;
    for (std::size_t i = 0; i < votes.size(); ++i) CHECK(votes[i] == (i % 8 == 6 || i % 8 == 1 ? 1 : 0));
}

TEST_CASE("a layer's importance is the error of evicting from it") {
    engine::vote_fit fit(model, {.keep_share = 10});
    const piece first(5, copied, 10, 15), second(5, 200, 10, 16);
    fit.look(0, first.input(), copied), fit.look(1, second.input(), 200);
    fit.settle();
    fit.evict(0, first.input()), fit.evict(1, second.input());
    const auto importance = fit.finish().importance;
    for (std::uint32_t l = 0; l < 2; ++l) {
        // A tenth of 300: the window's 8, and the 22 whose pooled attention is largest. 14 of these reach into the ten
        // marked tokens with five at a time; the other eight are the first ones, or whoever random keys favour.
        const std::size_t at = l == 0 ? copied : 200;
        std::vector<bool> present(tokens, false);
        std::fill(present.begin() + before, present.end(), true);
        std::fill(present.begin() + static_cast<std::ptrdiff_t>(at - 2),
                  present.begin() + static_cast<std::ptrdiff_t>(at + 12), true);
        const double at_most = error_by_definition(l == 0 ? first : second, present);
        CHECK(static_cast<double>(importance[l]) < at_most * 1.05);
        CHECK(static_cast<double>(importance[l]) > at_most * 0.6); // eight more of 268 cannot bring more back
    }
    engine::vote_fit all(model, {.keep_share = 1}); // nothing is evicted
    all.settle();
    all.evict(0, first.input());
    CHECK(static_cast<double>(all.finish().importance[0]) < 1e-6);
}

TEST_CASE(
    "drift: one less the cosine between a token's keys in both readings, mean over tokens, to a power") {
    engine::key_drift drift(model);
    std::vector<double> sum(2, 0.0);
    const std::size_t width = model.kv_heads * dim;
    for (const std::uint64_t seed : {1U, 2U})
        for (std::uint32_t l = 0; l < 2; ++l) {
            const auto a = oracle::normal_values(20 * width, seed * 10 + l);
            const auto noise = oracle::normal_values(20 * width, seed * 10 + 5, 0.5);
            auto b = a; // layer 0 does not change
            for (std::size_t i = 0; l == 1 && i < b.size(); ++i) b[i] += noise[i];
            kvtl::layer_input in;
            in.k = a;
            drift.whole(l, in);
            in.k = b;
            drift.blocks(l, in);
            for (std::size_t t = 0; t < 20; ++t) {
                const float *x = &a[t * width], *y = &b[t * width];
                sum[l] += 1 - oracle::dot(x, y, width) /
                                  std::sqrt(oracle::dot(x, x, width) * oracle::dot(y, y, width));
            }
        }
    const auto plain = drift.finish(1), squared = drift.finish(2);
    CHECK(plain[0] < 1e-6F);
    CHECK(std::fabs(static_cast<double>(plain[1]) - sum[1] / 40) < 1e-6);
    CHECK(plain[1] > 0.05F);
    CHECK(std::fabs(squared[1] - plain[1] * plain[1]) < 1e-6F);
}

TEST_CASE("a file of votes") {
    const engine::head_votes written{.votes = {1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0},
                                     .importance = {0.25F, 3}};
    const char* const path = "test_votes.txt";
    REQUIRE(engine::write_votes(path, model, 0xABCDU, written).ok());
    const auto same = engine::read_votes(path, model, 0xABCDU);
    REQUIRE(same.ok());
    CHECK(same->votes == written.votes);
    CHECK(same->importance == written.importance);
    CHECK(engine::read_votes(path, model, 0).ok());

    const auto refusal = [&](const kvtl::shape& s, std::uint64_t fingerprint) {
        const auto read = engine::read_votes(path, s, fingerprint);
        return read.ok() ? std::string("was taken") : read.error().message;
    };
    CHECK(refusal(model, 0xABCEU) ==
          "--votes: test_votes.txt was made for another model of this shape (000000000000abcd; this one is "
          "000000000000abce)");
    kvtl::shape other = model;
    other.layers = 3;
    CHECK(refusal(other, 0xABCDU) ==
          "--votes: test_votes.txt is of a model of 2 layers with 8 query heads; this one has 3 with 8");
    const auto put = [&](const char* text) { std::ofstream(path) << text; };
    const std::string not_votes =
        "--votes: test_votes.txt is no file of votes (kvtl-calibrate --votes writes one)";
    put("");
    CHECK(refusal(model, 0) == not_votes);
    put("some other text that is long enough to be read");
    CHECK(refusal(model, 0) == not_votes);
    put("kvtl-votes 2 model 000000000000abcd layers 2 query_heads 8\n");
    CHECK(refusal(model, 0) == "--votes: test_votes.txt has version 2; valid: 1");
    put("kvtl-votes 1 model 000000000000abcd layers 2 query_heads 8\n1 0 0 2 0 0 0 0 0.5\n");
    CHECK(refusal(model, 0) == "--votes: test_votes.txt layer 0, head 3: valid: 0 or 1");
    put("kvtl-votes 1 model 000000000000abcd layers 2 query_heads 8\n1 0 0 0 0 0 0 0 -1\n");
    CHECK(refusal(model, 0) ==
          "--votes: test_votes.txt layer 0: its importance is missing; valid: 0 or more");
    CHECK_FALSE(engine::write_votes("nowhere/votes.txt", model, 1, written).ok());
    std::remove(path);
}
