// Attention with rounded queries against double precision: any group, count and stride, masks, odd counts.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attend.hpp>

#include "support/oracle.hpp"
#include "support/partial_state.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace simd_relaxed_test {

namespace simd = kvtl::simd;
using arch = simd::default_arch;

namespace {

using state = kvtl_test::partial_state;

double error_of(const float* out, const std::vector<double>& expected) {
    double worst = 0;
    for (std::size_t d = 0; d < expected.size(); ++d)
        worst = std::max(worst, std::fabs(static_cast<double>(out[d]) - expected[d]));
    return worst;
}

constexpr kvtl::logit_rule relaxed(float scale) {
    return {scale, 0, true};
}

} // namespace

TEST_CASE("bf16 rows: close to double precision, and other bits than exact products") {
    double worst = 0, exactly = 0;
    for (const unsigned dim : {64U, 128U, 192U, 256U})
        for (const unsigned count : {1U, 2U, 7U, 8U, 9U, 31U, 32U, 33U, 100U})
            for (const unsigned group : {1U, 2U, 3U, 4U, 7U, 8U, 9U, 19U}) {
                const oracle::table<kvtl::bf16> k(count, dim, dim + 3, dim + count),
                    v(count, dim, dim + 5, dim * count);
                const oracle::table<float> q(group, dim, dim + 2, group);
                const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
                state s(group, dim), exact(group, dim);
                simd::attend_rows(q.memory.data(), q.stride, relaxed(scale), k.view(), v.view(), nullptr,
                                  s.view, s.scratch);
                simd::attend_rows(q.memory.data(), q.stride, scale, k.view(), v.view(), nullptr, exact.view,
                                  exact.scratch);
                const std::vector<float> out = s.out(), other = exact.out();
                for (std::size_t g = 0; g < group; ++g) {
                    const auto expected =
                        oracle::attend(q.view().row(g), oracle::value(scale), k.view(), v.view());
                    worst = std::max(worst, error_of(&out[g * dim], expected));
                    exactly = std::max(exactly, error_of(&other[g * dim], expected));
                }
                if (simd::has_relaxed_products<arch, kvtl::bf16> && count > 2) CHECK(out != other);
            }
    CHECK(worst < 8e-3); // numbers of up to 4.5, whose weights err by 2^-9 each
    CHECK(exactly < 3e-5);
}

TEST_CASE("other rows and other head sizes keep their bits") {
    const auto same = [](auto element, unsigned dim) {
        using E = decltype(element);
        const oracle::table<E> k(50, dim, dim, 1), v(50, dim, dim, 2);
        const oracle::table<float> q(8, dim, dim, 3);
        state s(8, dim), exact(8, dim);
        simd::attend_rows(q.memory.data(), dim, relaxed(0.2F), k.view(), v.view(), nullptr, s.view,
                          s.scratch);
        simd::attend_rows(q.memory.data(), dim, 0.2F, k.view(), v.view(), nullptr, exact.view, exact.scratch);
        CHECK(s.out() == exact.out());
    };
    same(float{}, 64);
    same(kvtl::f16{}, 128);
    same(kvtl::bf16{}, 80);
    same(kvtl::bf16{}, 320);
}

TEST_CASE("a query's result does not depend on the others, on masks, nor on how rows are cut into multiples "
          "of a block") {
    const unsigned dim = 128, count = 96, group = 11;
    const oracle::table<kvtl::bf16> k(count, dim, dim, 1), v(count, dim, dim, 2);
    const oracle::table<float> q(group, dim, dim, 3);
    const std::vector<float> bias = oracle::normal_values(count, 4, 2.0);
    const auto attended = [&](std::uint64_t queries, std::size_t cut) {
        state s(group, dim);
        for (std::size_t first = 0; first < count; first += cut)
            simd::attend_rows(q.memory.data(), dim, relaxed(0.1F), k.view().slice(first, cut),
                              v.view().slice(first, cut), bias.data() + first, s.view, s.scratch, queries);
        return s.out();
    };
    const std::vector<float> all = attended(simd::all_queries, count);
    CHECK(attended(simd::all_queries, 32) == all);
    for (const std::uint64_t queries : {0x001ULL, 0x400ULL, 0x155ULL, 0x6F8ULL, 0x1FFULL}) {
        const std::vector<float> some = attended(queries, count);
        for (std::size_t g = 0; g < group; ++g)
            for (std::size_t d = 0; d < dim; ++d)
                CHECK(some[g * dim + d] == ((queries >> g & 1) != 0 ? all[g * dim + d] : 0.0F));
    }
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
TEST_CASE(
    "scores of signed bytes: within half a step of the query per number, exact where it has whole steps") {
    for (const unsigned dim : {64U, 128U, 192U, 256U})
        for (const unsigned count : {1U, 5U, 8U, 13U, 32U})
            for (const unsigned group : {1U, 2U, 5U, 8U}) {
                const auto numbers = oracle::normal_values(count * (dim + 4), dim + count, 60.0);
                std::vector<std::int8_t> codes(numbers.size());
                for (std::size_t i = 0; i < codes.size(); ++i)
                    codes[i] = static_cast<std::int8_t>(std::clamp(numbers[i], -128.0F, 127.0F));
                codes[0] = -128;
                const kvtl::rows_view<std::int8_t> rows{codes.data(), count, dim, dim + 4};
                auto q = oracle::normal_values(group * dim, group);
                for (std::size_t d = 0; d < dim; ++d) // the last query: whole steps
                    q[(group - 1) * dim + d] = std::round(20 * q[(group - 1) * dim + d]);
                q[(group - 1) * dim] = 127;
                simd::rounded_queries<arch, std::int8_t> rounded;
                simd::round_queries<arch, std::int8_t>(q.data(), group, dim, dim, rounded);
                std::vector<float> out(group * 40, -7.0F);
                simd::score_rounded<arch, std::int8_t>(rounded, 0, group, rows, out.data(), 40);
                for (std::size_t g = 0; g < group; ++g) {
                    double largest = 0;
                    for (std::size_t d = 0; d < dim; ++d)
                        largest = std::max(largest, std::fabs(oracle::value(q[g * dim + d])));
                    for (std::size_t i = 0; i < 40; ++i) {
                        if (i >= count) {
                            CHECK(out[g * 40 + i] == -7.0F);
                            continue;
                        }
                        double size = 0;
                        for (std::size_t d = 0; d < dim; ++d)
                            size += std::fabs(oracle::value(rows.row(i)[d]));
                        const double exact = oracle::dot(q.data() + g * dim, rows.row(i), dim),
                                     bound = g + 1 == group ? 1e-6 * size * largest : size * largest / 253;
                        CHECK(std::fabs(static_cast<double>(out[g * 40 + i]) - exact) <= bound);
                    }
                }
                // From the middle of the group on, the same bits.
                std::vector<float> again(40);
                simd::score_rounded<arch, std::int8_t>(rounded, group / 2, 1, rows, again.data(), 40);
                CHECK(std::equal(again.begin(), again.begin() + count, out.begin() + group / 2 * 40));
            }
    simd::rounded_queries<arch, std::int8_t> zero;
    const std::vector<float> q(64, 0.0F);
    const std::vector<std::int8_t> codes(64, 100);
    simd::round_queries<arch, std::int8_t>(q.data(), 1, 64, 64, zero);
    float out = 1;
    simd::score_rounded<arch, std::int8_t>(zero, 0, 1, {codes.data(), 1, 64, 64}, &out, 1);
    CHECK(out == 0.0F);
}

TEST_CASE("weighted sums of signed bytes: weights within half of the largest's 65535th") {
    constexpr std::size_t block = simd::attend_block;
    for (const unsigned dim : {64U, 128U, 192U, 256U})
        for (const unsigned count : {1U, 3U, 4U, 5U, 16U, 17U, 31U, 32U})
            for (const unsigned group : {1U, 2U, 5U, 8U, 9U}) {
                const auto numbers = oracle::normal_values(count * (dim + 4), dim + count, 60.0);
                std::vector<std::int8_t> codes(numbers.size());
                for (std::size_t i = 0; i < codes.size(); ++i)
                    codes[i] = static_cast<std::int8_t>(std::clamp(numbers[i], -128.0F, 127.0F));
                const kvtl::rows_view<std::int8_t> rows{codes.data(), count, dim, dim + 4};
                auto weight = oracle::normal_values(group * block, group + count);
                for (float& w : weight) w = std::exp(3 * w); // peaked, as those of attention
                std::fill_n(weight.begin(), count, 0.0F);    // those of the first query: nothing
                for (std::size_t g = 0; g < group; ++g)
                    for (std::size_t i = count; i < block; ++i)
                        weight[g * block + i] = std::numeric_limits<float>::quiet_NaN(); // never read
                const std::size_t stride = dim + 16;
                auto acc = oracle::normal_values(group * stride, 5);
                const auto before = acc;
                simd::accumulate_relaxed<arch>(weight.data(), group, rows, acc.data(), stride);
                for (std::size_t g = 0; g < group; ++g)
                    for (std::size_t d = 0; d < stride; ++d) {
                        const float now = acc[g * stride + d], was = before[g * stride + d];
                        if (d >= dim || g == 0) {
                            CHECK(now == was);
                            continue;
                        }
                        double exact = oracle::value(was), size = 0, largest = 0;
                        for (std::size_t i = 0; i < count; ++i) {
                            const double w = oracle::value(weight[g * block + i]),
                                         x = oracle::value(rows.row(i)[d]);
                            exact += w * x, size += std::fabs(x), largest = std::max(largest, w);
                        }
                        CHECK(std::fabs(static_cast<double>(now) - exact) <=
                              largest * size * (0.51 / 65535 + 1e-6) + 1e-6);
                    }
            }
    const std::vector<std::int8_t> codes(64, 1);
    std::vector<float> weight(2 * block, 1.0F), acc(2 * 64, 0.0F);
    // Weights of which no multiple is a float are nothing.
    for (const float tiny : {1e-34F, 1e-40F}) {
        weight[0] = tiny;
        simd::accumulate_relaxed<arch>(weight.data(), 1,
                                       kvtl::rows_view<std::int8_t>{codes.data(), 1, 64, 64}, acc.data(), 64);
        CHECK(acc[0] == 0.0F);
        CHECK(acc[63] == 0.0F);
    }
    // A weight that is no number is not lost, and spoils no other query.
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        weight[0] = bad;
        std::fill(acc.begin(), acc.end(), 0.0F);
        simd::accumulate_relaxed<arch>(weight.data(), 2,
                                       kvtl::rows_view<std::int8_t>{codes.data(), 1, 64, 64}, acc.data(), 64);
        CHECK(std::isnan(acc[63]));
        CHECK(acc[127] == 1.0F);
    }
}
#endif

} // namespace simd_relaxed_test
