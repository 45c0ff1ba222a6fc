// Products with signed bytes and sums of table entries against double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/lookup.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace kvtl;

TEST_CASE("inner products with codes") {
    oracle::generator random(1);
    for (std::size_t n = 0; n < 200; ++n) {
        const auto q = oracle::normal_values<float>(n, n + 1);
        std::vector<std::int8_t> code(n);
        double exact = 0, scale = 1e-30;
        for (std::size_t i = 0; i < n; ++i) {
            code[i] = static_cast<std::int8_t>(static_cast<int>(random.below(256)) - 128);
            exact += static_cast<double>(q[i]) * code[i];
            scale += std::fabs(static_cast<double>(q[i]) * code[i]);
        }
        CHECK(std::fabs(static_cast<double>(simd::dot(q.data(), code.data(), n)) - exact) <= 1e-6 * scale);
    }
}

TEST_CASE("sum_lookups") {
    oracle::generator random(2);
    for (const std::size_t m : {1U, 2U, 5U})
        for (const std::size_t n : {0U, 1U, 3U, 4U, 9U, 64U})
            for (const std::size_t columns : {16U, 256U}) {
                const std::size_t stride = m + 3;
                const auto table = oracle::normal_values<float>(m * columns, n + 1);
                std::vector<std::uint8_t> code(n * stride, 255);
                std::vector<float> out(n + 1, -7.0F);
                for (std::size_t i = 0; i < n; ++i)
                    for (std::size_t s = 0; s < m; ++s)
                        code[i * stride + s] = static_cast<std::uint8_t>(random.below(columns));
                simd::sum_lookups(table.data(), columns, m, code.data(), stride, n, out.data());
                for (std::size_t i = 0; i < n; ++i) {
                    double exact = 0;
                    for (std::size_t s = 0; s < m; ++s)
                        exact += static_cast<double>(table[s * columns + code[i * stride + s]]);
                    CHECK(static_cast<double>(out[i]) == doctest::Approx(exact).epsilon(1e-5));
                }
                CHECK(out[n] == -7.0F);
            }
}
