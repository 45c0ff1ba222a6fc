// turn_attention: rows that pass by one at a time against attention by definition, entries with weights, results of 16 bits,
// and the same bits however tokens are cut.
// SPDX-License-Identifier: MIT
#include <kvtl/core/step/turn_attention.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace core_step_turn_attention_test {

using kvtl::bf16, kvtl::carver, kvtl::element, kvtl::f16, kvtl::from_float, kvtl::layer_input,
    kvtl::query_lane, kvtl::tensor_span, kvtl::to_float, kvtl::turn_attention;

namespace {

/// A layer of 6 query heads on 3 KV heads, of which the lane has the last two.
constexpr std::uint32_t all_heads = 6, group = 2, heads = 2, dim = 32, width = heads * dim;
constexpr query_lane queries{all_heads, 2, heads, group, dim, {0.2F, 0.0F}};

template <element E> struct lane_rows {
    std::size_t tokens;
    oracle::table<float> q;
    oracle::table<E> k, v;
    explicit lane_rows(std::size_t t)
        : tokens(t), q(t, all_heads * dim, all_heads * dim, 5), k(t, width, width, 6), v(t, width, width, 7) {
    }
};

/// Results of the tokens in chunks of `chunk`, each of which sees all rows of the tokens before it. weight(row) is its
/// log-weight. Queries that there is no room for come later.
template <element Out, bool Weighted, element E, class Weight>
std::vector<Out> attend(const lane_rows<E>& of, std::size_t chunk, std::uint32_t room, Weight&& weight) {
    using attention = turn_attention<E, Weighted>;
    carver count;
    static_cast<void>(attention::take(count, queries, room, kvtl::cache_plan::least_stretch));
    std::vector<float> memory(count.used() / sizeof(float) + 16, std::numeric_limits<float>::quiet_NaN());
    carver c(std::as_writable_bytes(std::span(memory)));
    attention a = attention::take(c, queries, room, kvtl::cache_plan::least_stretch);
    std::vector<Out> out(of.tokens * all_heads * dim, from_float<Out>(9.0F));
    for (std::size_t first = 0, some = 0; first < of.tokens; first += some) {
        const std::size_t most = a.most_tokens(queries, tensor_span(out));
        REQUIRE(most == (std::is_same_v<Out, float> ? room * (dim + 2) / 2 : room));
        some = std::min({chunk, most, of.tokens - first});
        const layer_input in{
            .q =
                std::span<const float>(of.q.memory).subspan(first * all_heads * dim, some * all_heads * dim)};
        a.begin(queries, in, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(some),
                tensor_span(out).subspan(first * all_heads * dim, some * all_heads * dim));
        for (std::size_t row = 0; row < first + some; ++row)
            a.add(weight(row), [&](E* k, E* v) {
                std::copy_n(of.k.view().row(row), width, k);
                std::copy_n(of.v.view().row(row), width, v);
            });
    }
    return out;
}

template <element Out, element E, class Weight>
double error(const lane_rows<E>& of, const std::vector<Out>& out, Weight&& weight) {
    double worst = 0;
    for (std::size_t t = 0; t < of.tokens; ++t)
        for (std::uint32_t h = 0; h < all_heads; ++h) {
            const Out* got = &out[(t * all_heads + h) * dim];
            if (h < queries.first) { // another lane's
                for (std::uint32_t d = 0; d < dim; ++d) REQUIRE(to_float(got[d]) == 9.0F);
                continue;
            }
            const std::size_t column = (h - queries.first) / group * dim;
            std::vector<double> share(t + 1), expected(dim, 0.0);
            double sum = 0;
            for (std::size_t i = 0; i <= t; ++i) {
                double logit = 0;
                for (std::uint32_t d = 0; d < dim; ++d)
                    logit += static_cast<double>(of.q.view().row(t)[h * dim + d]) *
                             static_cast<double>(to_float(of.k.view().row(i)[column + d]));
                sum += share[i] =
                    std::exp(logit * static_cast<double>(0.2F) + static_cast<double>(weight(i)));
            }
            for (std::size_t i = 0; i <= t; ++i)
                for (std::uint32_t d = 0; d < dim; ++d)
                    expected[d] +=
                        share[i] / sum * static_cast<double>(to_float(of.v.view().row(i)[column + d]));
            for (std::uint32_t d = 0; d < dim; ++d)
                worst = std::max(worst, std::fabs(static_cast<double>(to_float(got[d])) - expected[d]));
        }
    return worst;
}

constexpr auto no_weight = [](std::size_t) { return 0.0F; };
constexpr auto some_weight = [](std::size_t row) { return std::log(1.0F + static_cast<float>(row % 5)); };

} // namespace

TEST_CASE_TEMPLATE("every row counts once for every query behind it", E, float, f16, bf16) {
    for (const std::size_t tokens : {1U, 63U, 64U, 65U, 700U}) { // 700 are several stretches of any type
        CAPTURE(tokens);
        const lane_rows<E> rows(tokens);
        CHECK(error(rows, attend<float, false>(rows, 100, 8, no_weight), no_weight) < 1e-5);
    }
}

TEST_CASE("an entry of weight ln n counts as n equal ones") {
    const lane_rows<float> rows(300);
    CHECK(error(rows, attend<float, true>(rows, 120, 8, some_weight), some_weight) < 1e-5);
    CHECK(error(rows, attend<float, true>(rows, 120, 8, some_weight), no_weight) > 1e-3);
}

TEST_CASE("bits do not depend on chunks, nor on how many queries there is room for") {
    const lane_rows<f16> rows(700);
    const auto whole = attend<float, false>(rows, 700, 64, no_weight);
    for (const std::size_t chunk : {1U, 7U, 64U, 333U}) {
        const auto cut = attend<float, false>(rows, chunk, 2, no_weight);
        CHECK(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("a chunk behind a lane's entries has the same bits in any memory, and they pass by as often as it "
          "takes") {
    const lane_rows<f16> rows(300);
    const auto whole = attend<float, false>(rows, 300, 512, no_weight);
    constexpr std::uint32_t before = 110, tokens = 190, layer = all_heads / group * dim;
    std::vector<f16> k(tokens * layer),
        v(tokens * layer); // of all KV heads, of which the lane has the last two
    for (std::size_t t = 0; t < tokens; ++t) {
        std::copy_n(rows.k.view().row(before + t), width, &k[t * layer + dim]);
        std::copy_n(rows.v.view().row(before + t), width, &v[t * layer + dim]);
    }
    const std::span<const float> q = std::span<const float>(rows.q.memory).subspan(before * all_heads * dim);
    const layer_input in{.q = q, .k = std::span<const f16>(k), .v = std::span<const f16>(v)};
    using attention = turn_attention<f16, false>;
    carver least;
    static_cast<void>(attention::take(least, queries, 1, 0));
    const std::uint32_t at_once = (dim + 2) / 2; // tokens where each has a maximum and a sum
    struct room_and_passes {
        std::size_t more;
        std::uint32_t passes;
    };
    for (const auto [more, passes] :
         {room_and_passes{0, (tokens + at_once - 1) / at_once}, {std::size_t{1} << 20, 1}}) {
        std::vector<float> memory((least.used() + more) / sizeof(float) + 16,
                                  std::numeric_limits<float>::quiet_NaN());
        void* at = memory.data();
        std::size_t room = memory.size() * sizeof(float);
        REQUIRE(std::align(64, least.used() + more, at, room) != nullptr);
        attention a = attention::within({static_cast<std::byte*>(at), least.used() + more}, queries, tokens);
        std::vector<float> out(tokens * all_heads * dim, 9.0F);
        std::uint32_t passed = 0;
        const auto pass = [&]() -> kvtl::status {
            ++passed;
            a.add(rows.k.view().row(0), rows.v.view().row(0), nullptr, before);
            return {};
        };
        REQUIRE(a.attend(queries, in, before, tokens, tensor_span(out), pass).ok());
        CHECK(passed == passes);
        CHECK(std::memcmp(out.data(), &whole[before * all_heads * dim], out.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("results of 16 bits are those of floats, rounded once") {
    const lane_rows<f16> rows(400);
    const auto whole = attend<float, false>(rows, 400, 64, no_weight);
    const auto half = attend<f16, false>(rows, 150, 40, no_weight);
    for (std::size_t i = 0; i < whole.size(); ++i)
        REQUIRE(to_float(half[i]) == to_float(from_float<f16>(whole[i])));
}

} // namespace core_step_turn_attention_test
