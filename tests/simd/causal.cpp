// Prefill attention against double precision, and bit for bit against itself under every cutting of the
// prompt.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/causal.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace simd_causal_test {

namespace simd = kvtl::simd;

namespace {

/// Queries, keys and values of a prompt; rows are padded with NaN.
template <class E> struct prompt {
    std::size_t tokens, group, dim;
    oracle::table<float> q; ///< (T, G * D)
    oracle::table<E> k, v;

    prompt(std::size_t t, std::size_t g, std::size_t d, std::uint64_t seed, double magnitude = 1.0)
        : tokens(t), group(g), dim(d), q(t, g * d, g * d + 5, seed, magnitude), k(t, d, d + 3, seed + 1),
          v(t, d, d + 4, seed + 2) {}

    /// Attends in chunks that end at `cuts`; the keys behind a chunk are not there yet.
    [[nodiscard]] std::vector<float> attend(const std::vector<std::size_t>& cuts, float scale) const {
        const std::size_t stride = group * dim + 1;
        std::vector<float> out(tokens * stride, 9.0F);
        std::vector<float> scratch(simd::causal_scratch_floats(dim), std::numeric_limits<float>::quiet_NaN());
        std::size_t first = 0;
        for (const std::size_t end : cuts) {
            simd::attend_causal(std::span(q.memory).subspan(first * q.stride), q.stride, group, scale,
                                end - first, k.view().slice(0, end), v.view().slice(0, end), first,
                                std::span(out).subspan(first * stride), stride, scratch);
            first = end;
        }
        for (std::size_t t = 0; t < tokens; ++t) REQUIRE(out[t * stride + group * dim] == 9.0F);
        return out;
    }
    [[nodiscard]] double error(const std::vector<float>& out, float scale) const {
        double worst = 0;
        for (std::size_t t = 0; t < tokens; ++t)
            for (std::size_t g = 0; g < group; ++g) {
                const auto expected = oracle::attend(q.view().row(t) + g * dim, static_cast<double>(scale),
                                                     k.view().slice(0, t + 1), v.view().slice(0, t + 1));
                for (std::size_t d = 0; d < dim; ++d)
                    worst = std::max(worst,
                                     std::fabs(static_cast<double>(out[t * (group * dim + 1) + g * dim + d]) -
                                               expected[d]));
            }
        return worst;
    }
};

} // namespace

TEST_CASE_TEMPLATE("any shape equals double precision", E, float, kvtl::f16, kvtl::bf16) {
    for (const std::size_t dim : {1U, 20U, 64U, 80U, 96U, 128U})
        for (const std::size_t tokens : {1U, 3U, 64U, 65U, 150U})
            for (const std::size_t group : {1U, 3U, 4U}) {
                const prompt<E> p(tokens, group, dim, dim + tokens);
                CHECK(p.error(p.attend({tokens}, 0.3F), 0.3F) < 1e-5);
            }
}

TEST_CASE("large and small logits") {
    for (const double magnitude : {1e-20, 30.0, 1e4}) {
        const prompt<float> p(130, 2, 32, 8, magnitude);
        // Logits of about 5e4 carry a float's rounding, 4e-3, into the weights.
        CHECK(p.error(p.attend({130}, 1.0F), 1.0F) < (magnitude > 1e3 ? 3e-2 : 1e-4));
    }
}

TEST_CASE_TEMPLATE("no bit depends on how the prompt is cut into chunks", E, float, kvtl::f16) {
    for (const std::size_t dim : {24U, 64U, 128U})
        for (const std::size_t group : {1U, 3U, 7U}) {
            const std::size_t tokens = 200;
            const prompt<E> p(tokens, group, dim, dim * group);
            const std::vector<float> whole = p.attend({tokens}, 0.2F);
            std::vector<std::size_t> one_by_one(tokens);
            for (std::size_t t = 0; t < tokens; ++t) one_by_one[t] = t + 1;
            std::vector<std::vector<std::size_t>> cuttings = {
                one_by_one, {64, 128, 192, 200}, {1, 63, 65, 199, 200}};
            oracle::generator random(group);
            for (int i = 0; i < 6; ++i) {
                std::vector<std::size_t> cuts;
                for (std::size_t at = 0; at < tokens;)
                    cuts.push_back(at = std::min(tokens, at + 1 + random.below(90)));
                cuttings.push_back(cuts);
            }
            for (const auto& cuts : cuttings) {
                const std::vector<float> pieces = p.attend(cuts, 0.2F);
                CHECK(std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)) == 0);
            }
        }
}

TEST_CASE("a sum of -0 keeps its bits, too") {
    // Query 1: a weight below 1/2 takes the smallest negative number to -0, and so it stays. In a longer
    // chunk the keys behind it, with weight 0 and positive values, turn it into +0.
    prompt<float> p(70, 1, 16, 5);
    for (std::size_t t = 0; t < 70; ++t)
        for (std::size_t d = 0; d < 16; ++d) {
            p.q.row(t)[d] = 1.0F;
            p.k.row(t)[d] = static_cast<float>(t);
            p.v.row(t)[d] = t == 0 ? -std::numeric_limits<float>::denorm_min() : t == 1 ? -0.0F : 1.0F;
        }
    const std::vector<float> whole = p.attend({70}, 1.0F), pieces = p.attend({1, 2, 70}, 1.0F);
    CHECK(whole[17] == 0.0F);
    CHECK(std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)) == 0);
}

TEST_CASE("a key behind the last query is never touched") {
    prompt<kvtl::f16> p(100, 2, 64, 6);
    std::vector<float> out(40 * 128), scratch(simd::causal_scratch_floats(64));
    for (std::size_t t = 70; t < 100; ++t) {
        std::fill_n(p.k.row(t), 64, kvtl::f16{0x7E00}); // NaN
        std::fill_n(p.v.row(t), 64, kvtl::f16{0x7E00});
    }
    simd::attend_causal(p.q.memory, p.q.stride, 2, 0.1F, 40, p.k.view(), p.v.view(), 30, out, 128, scratch);
    CHECK(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("queries that slide, capped logits, logits without a value") {
    const prompt<kvtl::f16> p(230, 3, 40, 11);
    const std::vector<float> sinks{0.5F, 3.0F, -40.0F};
    std::vector<float> scratch(simd::causal_scratch_floats(40), std::numeric_limits<float>::quiet_NaN());
    const kvtl::logit_rule rule{0.3F, 2.0F};
    for (const std::size_t reach :
         {std::size_t{1}, std::size_t{5}, std::size_t{64}, std::size_t{100}, simd::no_reach}) {
        std::vector<float> whole(230 * 120), out(whole.size());
        simd::attend_causal(p.q.memory, p.q.stride, 3, rule, 230, p.k.view(), p.v.view(), 0, whole, 120,
                            scratch, reach, sinks.data());
        double worst = 0;
        for (std::size_t t = 0; t < 230; ++t)
            for (std::size_t g = 0; g < 3; ++g) {
                const std::size_t from = t + 1 > reach ? t + 1 - reach : 0;
                const auto expected = oracle::attend(
                    p.q.view().row(t) + g * 40, oracle::value(0.3F), p.k.view().slice(from, t + 1 - from),
                    p.v.view().slice(from, t + 1 - from), nullptr, 2.0, oracle::value(sinks[g]));
                for (std::size_t d = 0; d < 40; ++d)
                    worst =
                        std::max(worst, std::fabs(oracle::value(whole[(t * 3 + g) * 40 + d]) - expected[d]));
            }
        CHECK(worst < 1e-5);
        for (std::size_t first = 0, end = 0; first < 230; first = end) { // cut anywhere: the same bits
            end = std::min<std::size_t>(230, first + 37);
            simd::attend_causal(std::span(p.q.memory).subspan(first * p.q.stride), p.q.stride, 3, rule,
                                end - first, p.k.view().slice(0, end), p.v.view().slice(0, end), first,
                                std::span(out).subspan(first * 120), 120, scratch, reach, sinks.data());
        }
        CHECK(std::memcmp(whole.data(), out.data(), out.size() * sizeof(float)) == 0);
    }
}

TEST_CASE_TEMPLATE("keys may come in stretches, and no bit depends on it", E, float, kvtl::f16) {
    const std::vector<float> sinks{0.5F, -3.0F, 2.0F};
    const auto weights = oracle::normal_values(330, 14);
    for (const std::size_t dim : {40U, 64U}) // padded, and not
        for (const std::size_t first : {0U, 5U, 200U})
            for (const float* log_weight : {static_cast<const float*>(nullptr), weights.data()}) {
                const prompt<E> p(330, 3, dim, 13 + first);
                const std::size_t queries = 330 - first, stride = 3 * dim + 1;
                const auto q = std::span(p.q.memory).subspan(first * p.q.stride);
                const kvtl::logit_rule rule{0.3F, 2.0F};
                const auto attend = [&](std::size_t begin, std::size_t n, std::vector<float>& out,
                                        const simd::causal_stretch& stretch) {
                    std::vector<float> scratch(simd::causal_scratch_floats(dim), NAN);
                    simd::attend_causal(q, p.q.stride, 3, rule, queries, p.k.view().slice(begin, n),
                                        p.v.view().slice(begin, n), first, out, stride, scratch,
                                        simd::no_reach, sinks.data(), stretch);
                };
                std::vector<float> whole(queries * stride, 9.0F);
                attend(0, 330, whole, {.log_weight = log_weight});
                for (const std::size_t step : {64U, 192U}) {
                    std::vector<float> out(whole.size(), 9.0F), max(queries * 3, NAN), sum(queries * 3, NAN);
                    for (std::size_t begin = 0; begin < 330; begin += step) {
                        const std::size_t n = std::min(step, 330 - begin);
                        attend(begin, n, out,
                               {begin, begin + n, max.data(), sum.data(), nullptr,
                                log_weight == nullptr ? nullptr : log_weight + begin});
                    }
                    CHECK(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)) == 0);
                }
            }
}

TEST_CASE("a log-weight is added to the logits of its key") {
    const prompt<float> p(150, 2, 16, 15);
    const auto weights = oracle::normal_values(150, 16);
    const kvtl::logit_rule rule{0.4F};
    std::vector<float> scratch(simd::causal_scratch_floats(16), NAN), out(150 * 32);
    simd::attend_causal(p.q.memory, p.q.stride, 2, rule, 150, p.k.view(), p.v.view(), 0, out, 32, scratch,
                        simd::no_reach, nullptr, {.log_weight = weights.data()});
    oracle::largest_error worst;
    for (const std::size_t t : {0U, 63U, 64U, 149U})
        for (std::size_t g = 0; g < 2; ++g) {
            double sum = 0;
            std::vector<double> of(16);
            for (std::size_t key = 0; key <= t; ++key) {
                double logit = 0;
                for (std::size_t d = 0; d < 16; ++d)
                    logit += double{p.q.memory[t * p.q.stride + g * 16 + d]} * double{p.k.view().row(key)[d]};
                const double weight = std::exp(0.4 * logit + double{weights[key]});
                sum += weight;
                for (std::size_t d = 0; d < 16; ++d) of[d] += weight * double{p.v.view().row(key)[d]};
            }
            for (std::size_t d = 0; d < 16; ++d)
                worst.relative(double{out[t * 32 + g * 16 + d]}, of[d] / sum, 1.0);
        }
    CHECK(worst.value() < 1e-5);
}

namespace {
template <kvtl::element E> std::vector<E> rounded(std::span<const float> in) {
    std::vector<E> out;
    for (const float x : in) out.push_back(kvtl::from_float<E>(x));
    return out;
}
} // namespace

TEST_CASE_TEMPLATE("queries and results of 16 bits: of the same numbers, the results of floats rounded once",
                   E, kvtl::f16, kvtl::bf16) {
    const std::vector<float> sinks{0.5F, -3.0F, 2.0F};
    for (const std::size_t dim : {20U, 64U}) {
        const prompt<kvtl::f16> p(200, 3, dim, 17);
        const std::size_t first = 30, queries = 170, row = 3 * dim, stride = row + 1;
        const std::vector<E> q = rounded<E>(p.q.memory); // with NaN between the rows
        std::vector<float> wide, scratch(simd::causal_scratch_floats(dim), NAN);
        for (const E x : q) wide.push_back(kvtl::to_float(x));
        std::vector<float> whole(queries * stride, 9.0F), max(queries * 3, NAN), sum(max),
            acc(queries * row, NAN);
        std::vector<E> out(whole.size(), kvtl::from_float<E>(9.0F)), pieces(out);
        const auto attend = [&](const kvtl::tensor_view& from, const kvtl::tensor_span& to,
                                std::size_t reach) {
            simd::attend_causal(from.subspan(first * p.q.stride, queries * p.q.stride), p.q.stride, 3, 0.3F,
                                queries, p.k.view(), p.v.view(), first, to, stride, scratch, reach,
                                sinks.data());
        };
        for (const std::size_t reach : {std::size_t{40}, simd::no_reach}) {
            attend(wide, whole, reach);
            attend(q, out, reach);
            CHECK(out == rounded<E>(whole));
        }
        for (std::size_t begin = 0; begin < 200; begin += 64) { // what stretches leave lies elsewhere
            const std::size_t n = std::min<std::size_t>(64, 200 - begin);
            simd::attend_causal(kvtl::tensor_view(q).subspan(first * p.q.stride, queries * p.q.stride),
                                p.q.stride, 3, 0.3F, queries, p.k.view().slice(begin, n),
                                p.v.view().slice(begin, n), first, pieces, stride, scratch, simd::no_reach,
                                sinks.data(), {begin, begin + n, max.data(), sum.data(), acc.data()});
        }
        CHECK(pieces == out);
    }
}

} // namespace simd_causal_test
