// Attention that keeps logits: the same output as attend_rows, and shares as a softmax in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attend_mass.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace simd_attend_mass_test {

namespace simd = kvtl::simd;

TEST_CASE_TEMPLATE("shares sum to one and equal double precision", E, float, kvtl::f16, kvtl::bf16) {
    for (const std::size_t dim : {1U, 20U, 64U, 128U})
        for (const std::size_t rows : {1U, 15U, 32U, 33U, 100U})
            for (const std::uint32_t group : {1U, 3U, 4U})
                for (const bool weighted : {false, true}) {
                    const oracle::table<E> k(rows, dim, dim + 3, 1), v(rows, dim, dim + 2, 2);
                    const auto q = oracle::normal_values(group * dim, 3);
                    auto log_weight = oracle::normal_values(rows, 4);
                    if (rows > 5) log_weight[3] = -std::numeric_limits<float>::infinity();
                    const float* weights = weighted ? log_weight.data() : nullptr;
                    const std::size_t stride = rows + 5;
                    std::vector<float> memory(kvtl::partial_floats(group, dim)), plain(memory.size()),
                        scratch(simd::attend_scratch_floats(group)), logit(group * stride, 9.0F), mass(rows);
                    const auto p = kvtl::partial_at(memory.data(), group, static_cast<std::uint32_t>(dim));
                    const auto same = kvtl::partial_at(plain.data(), group, static_cast<std::uint32_t>(dim));
                    kvtl::reset(p);
                    kvtl::reset(same);
                    simd::attend_rows_keeping_logits(q.data(), dim, 0.3F, k.view(), v.view(), weights, p,
                                                     scratch, logit.data(), stride);
                    simd::attend_rows(q.data(), dim, 0.3F, k.view(), v.view(), weights, same, scratch);
                    CHECK(std::memcmp(memory.data(), plain.data(), plain.size() * sizeof(float)) == 0);
                    simd::shares_of_softmax(logit.data(), stride, rows, p, mass.data());

                    std::vector<double> expected(rows, 0.0);
                    for (std::uint32_t g = 0; g < group; ++g) {
                        std::vector<double> e(rows);
                        double sum = 0;
                        for (std::size_t i = 0; i < rows; ++i) {
                            const double bias = weighted ? oracle::value(log_weight[i]) : 0.0;
                            sum += e[i] = std::exp(static_cast<double>(0.3F) *
                                                       oracle::dot(q.data() + g * dim, k.view().row(i), dim) +
                                                   bias);
                        }
                        for (std::size_t i = 0; i < rows; ++i) expected[i] += e[i] / sum / group;
                    }
                    double worst = 0, all = 0;
                    for (std::size_t i = 0; i < rows; ++i) {
                        worst = std::max(worst, std::fabs(static_cast<double>(mass[i]) - expected[i]));
                        all += static_cast<double>(mass[i]);
                    }
                    CHECK(worst < 1e-5);
                    CHECK(std::fabs(all - 1.0) < 1e-5);
                    for (std::uint32_t g = 0; g < group; ++g)
                        for (std::size_t i = rows; i < stride; ++i) REQUIRE(logit[g * stride + i] == 9.0F);
                }
}

} // namespace simd_attend_mass_test
