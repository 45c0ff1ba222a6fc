// Decode attention against double precision: shapes, strides, masks, log-weights, extreme logits, any
// cutting.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attend.hpp>

#include "support/oracle.hpp"
#include "support/partial_state.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <type_traits>

namespace simd_attend_test {

namespace simd = kvtl::simd;

namespace {

using state = kvtl_test::partial_state;

double error_of(const std::vector<float>& out, std::size_t g, const std::vector<double>& expected) {
    double worst = 0;
    for (std::size_t d = 0; d < expected.size(); ++d)
        worst = std::max(worst, std::fabs(static_cast<double>(out[g * expected.size() + d]) - expected[d]));
    return worst;
}

} // namespace

TEST_CASE_TEMPLATE("any group, count, dim and stride", E, float, kvtl::f16, kvtl::bf16) {
    double worst = 0;
    for (const unsigned dim : {1U, 7U, 16U, 24U, 64U, 80U, 96U, 100U, 128U, 256U})
        for (const unsigned count : {1U, 2U, 5U, 31U, 32U, 33U, 64U, 100U})
            for (const unsigned group : {1U, 2U, 3U, 4U, 6U, 7U, 8U}) {
                const oracle::table<E> k(count, dim, dim + 3, dim + count),
                    v(count, dim, dim + 5, dim * count);
                const oracle::table<float> q(group, dim, dim + 2, group);
                const double scale = 1.0 / std::sqrt(dim);
                state s(group, dim);
                simd::attend_rows(q.memory.data(), q.stride, static_cast<float>(scale), k.view(), v.view(),
                                  nullptr, s.view, s.scratch);
                const std::vector<float> out = s.out();
                for (std::size_t g = 0; g < group; ++g)
                    worst = std::max(
                        worst, error_of(out, g, oracle::attend(q.view().row(g), scale, k.view(), v.view())));
            }
    // Paddings are NaN: reading one is seen. Logits of bf16 rows have the errors of queries in two parts (bf16_products.hpp).
    CHECK(worst <
          (simd::has_bf16_products<simd::default_arch> && std::is_same_v<E, kvtl::bf16> ? 2e-5 : 5e-6));
}

TEST_CASE("64 queries, and rows that come in pieces and out of order") {
    const std::uint32_t group = 64, dim = 40, count = 150;
    const oracle::table<kvtl::f16> k(count, dim, dim, 1), v(count, dim, dim, 2);
    const oracle::table<float> q(group, dim, dim, 3);
    const std::vector<float> bias = oracle::normal_values(count, 4, 2.0);
    state s(group, dim);
    for (const auto& [first, n] : {std::pair{90U, 60U}, {0U, 1U}, {1U, 0U}, {41U, 49U}, {1U, 40U}})
        simd::attend_rows(q.memory.data(), dim, 0.5F, k.view().slice(first, n), v.view().slice(first, n),
                          bias.data() + first, s.view, s.scratch);
    const std::vector<float> out = s.out();
    double worst = 0;
    for (std::size_t g = 0; g < group; ++g)
        worst = std::max(
            worst, error_of(out, g, oracle::attend(q.view().row(g), 0.5, k.view(), v.view(), bias.data())));
    CHECK(worst < 2e-5);
}

TEST_CASE("capped logits and logits without a value, in pieces") {
    const std::uint32_t group = 5, dim = 48, count = 77;
    const oracle::table<kvtl::f16> k(count, dim, dim, 1), v(count, dim, dim, 2);
    const oracle::table<float> q(group, dim, dim, 3);
    const std::vector<float> bias = oracle::normal_values(count, 4, 2.0),
                             sinks{3.0F, -50.0F, 0.0F, 9.0F, -INFINITY};
    for (const float cap : {0.5F, 4.0F, 50.0F, 1000.0F}) {
        state s(group, dim);
        for (const auto& [first, n] : {std::pair{40U, 37U}, {0U, 40U}})
            simd::attend_rows(q.memory.data(), dim, {0.4F, cap}, k.view().slice(first, n),
                              v.view().slice(first, n), bias.data() + first, s.view, s.scratch);
        kvtl::add_sink_logits(s.view, sinks.data());
        const std::vector<float> out = s.out();
        double worst = 0;
        for (std::size_t g = 0; g < group; ++g)
            worst = std::max(
                worst, error_of(out, g,
                                oracle::attend(q.view().row(g), oracle::value(0.4F), k.view(), v.view(),
                                               bias.data(), oracle::value(cap), oracle::value(sinks[g]))));
        CHECK(worst < 1e-5 + 1e-6 * oracle::value(cap));
    }
}

TEST_CASE("a logit without a value: alone it takes everything, and where there is none nothing changes") {
    state s(2, 8);
    const std::vector<float> sinks{1.0F, -INFINITY};
    kvtl::add_sink_logits(s.view, sinks.data());
    CHECK(s.view.sum[0] == 1.0F);
    CHECK(s.view.sum[1] == 0.0F);
    for (const float x : s.out()) CHECK(x == 0.0F);
}

TEST_CASE("logits of any magnitude, in rising and falling order") {
    const std::uint32_t dim = 64, count = 130;
    for (const float magnitude : {1e-30F, 1.0F, 1e3F, 1e18F, 3e36F})
        for (const bool rising : {true, false}) {
            oracle::table<float> k(count, dim, dim, 1), v(count, dim, dim, 2), q(4, dim, dim, 3);
            // All logits come from dimension 0, so that they are exact: the oracle must see the same ones.
            for (std::size_t i = 0; i < count; ++i) {
                std::fill_n(k.row(i), dim, 0.0F);
                const auto step = static_cast<float>(rising ? i : count - 1 - i) - 64.0F;
                k.row(i)[0] = magnitude * step;
            }
            for (std::size_t g = 0; g < 4; ++g) q.row(g)[0] = g % 2 == 0 ? 1.0F : -0.5F;
            state s(4, dim);
            simd::attend_rows(q.memory.data(), dim, 1.0F, k.view(), v.view(), nullptr, s.view, s.scratch);
            const std::vector<float> out = s.out();
            double worst = 0;
            for (std::size_t g = 0; g < 4; ++g)
                worst = std::max(worst, error_of(out, g, oracle::attend(q.row(g), 1.0, k.view(), v.view())));
            CHECK(worst < 5e-6);
        }
}

TEST_CASE("absent rows: left out; a block of nothing else changes no bit of the state") {
    const std::uint32_t dim = 80, count = 70;
    const float absent = -std::numeric_limits<float>::infinity();
    const oracle::table<kvtl::bf16> k(count, dim, dim, 1), v(count, dim, dim, 2);
    const oracle::table<float> q(5, dim, dim, 3);
    std::vector<float> bias(count, 0.0F);
    for (std::size_t i = 0; i < count; ++i)
        if (i < 40 || i % 3 == 0) bias[i] = absent; // the first block of rows is absent altogether
    state s(5, dim);
    simd::attend_rows(q.memory.data(), dim, 0.1F, k.view(), v.view(), bias.data(), s.view, s.scratch);
    const std::vector<float> out = s.out();
    for (std::size_t g = 0; g < 5; ++g)
        CHECK(error_of(out, g, oracle::attend(q.view().row(g), 0.1F, k.view(), v.view(), bias.data())) <
              5e-6);

    const std::vector<float> before = s.memory;
    const std::vector<float> none(count, absent);
    simd::attend_rows(q.memory.data(), dim, 0.1F, k.view(), v.view(), none.data(), s.view, s.scratch);
    CHECK(std::memcmp(before.data(), s.memory.data(), before.size() * sizeof(float)) == 0);

    state empty(5, dim);
    simd::attend_rows(q.memory.data(), dim, 0.1F, k.view(), v.view(), none.data(), empty.view, empty.scratch);
    for (const float x : empty.out()) CHECK(x == 0.0F);
    CHECK(empty.view.sum[4] == 0.0F);
}

TEST_CASE("a row with log-weight ln n equals n copies of it") {
    const std::uint32_t dim = 64;
    const oracle::table<float> few(2, dim, dim, 1), values(2, dim, dim, 2), q(2, dim, dim, 3);
    oracle::table<float> many(12, dim, dim, 4), many_values(12, dim, dim, 5);
    for (std::size_t i = 0; i < 12; ++i) {
        std::copy_n(few.view().row(i == 0 ? 0 : 1), dim, many.row(i));
        std::copy_n(values.view().row(i == 0 ? 0 : 1), dim, many_values.row(i));
    }
    const float log_count[] = {0.0F, std::log(11.0F)};
    state a(2, dim), b(2, dim);
    simd::attend_rows(q.memory.data(), dim, 0.2F, few.view(), values.view(), log_count, a.view, a.scratch);
    simd::attend_rows(q.memory.data(), dim, 0.2F, many.view(), many_values.view(), nullptr, b.view,
                      b.scratch);
    const std::vector<float> x = a.out(), y = b.out();
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(y[i]).epsilon(1e-5));
}

TEST_CASE("a mask lets some queries attend and leaves the others' state alone") {
    for (const std::uint32_t group : {1U, 3U, 8U, 13U, 64U}) {
        const std::uint32_t dim = 96, count = 50;
        const oracle::table<kvtl::f16> k(count, dim, dim, 1), v(count, dim, dim, 2);
        const oracle::table<float> q(group, dim, dim, 3);
        oracle::generator random(group);
        for (int round = 0; round < 20; ++round) {
            const std::uint64_t mask = round == 0 ? 0 : round == 1 ? ~std::uint64_t{0} : random.bits();
            state masked(group, dim), whole(group, dim);
            simd::attend_rows(q.memory.data(), dim, 0.1F, k.view(), v.view(), nullptr, whole.view,
                              whole.scratch);
            simd::attend_rows(q.memory.data(), dim, 0.1F, k.view(), v.view(), nullptr, masked.view,
                              masked.scratch, mask);
            for (std::uint32_t g = 0; g < group; ++g) {
                const bool in = (mask >> g & 1) != 0;
                const float* acc = masked.view.acc + g * dim;
                if (in) { // the same bits, whatever run of queries g was computed in
                    CHECK(masked.view.sum[g] == whole.view.sum[g]);
                    CHECK(std::equal(acc, acc + dim, whole.view.acc + g * dim));
                } else {
                    CHECK(masked.view.sum[g] == 0.0F);
                    CHECK(std::all_of(acc, acc + dim, [](float x) { return x == 0.0F; }));
                }
            }
        }
    }
}

} // namespace simd_attend_test
