// Products with signed bytes and sums of table entries against double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/lookup.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace simd_codes_test {

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

TEST_CASE("scores and sums of rows of codes, for whole groups of queries") {
    oracle::generator random(9);
    for (const std::size_t dim : {1U, 7U, 8U, 50U, 64U, 80U, 96U, 128U, 131U})
        for (const std::size_t group : {1U, 3U, 4U, 7U})
            for (const std::size_t n : {1U, 3U, 4U, 18U, 32U}) {
                CAPTURE(dim);
                CAPTURE(group);
                CAPTURE(n);
                const std::size_t stride = dim + 5; // as with a scale before each row
                std::vector<std::int8_t> codes(n * stride, 99);
                for (std::size_t i = 0; i < n; ++i)
                    for (std::size_t d = 0; d < dim; ++d)
                        codes[i * stride + d] =
                            static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127);
                const rows_view<std::int8_t> rows{codes.data(), n, dim, stride};
                const auto q = oracle::normal_values<float>(group * dim, dim + n);
                const auto weight = oracle::normal_values<float>(group * simd::attend_block, dim + group);
                std::vector<float> out(group * 40, -7.0F), acc(group * dim, 1.0F);
                simd::score_rows<simd::default_arch>(q.data(), group, dim, rows, out.data(), 40);
                simd::accumulate_rows<simd::default_arch>(weight.data(), group, rows, acc.data(), dim);
                oracle::largest_error error;
                for (std::size_t g = 0; g < group; ++g) {
                    for (std::size_t i = 0; i < n; ++i) {
                        double exact = 0, size = 1e-30;
                        for (std::size_t d = 0; d < dim; ++d) {
                            const double x = static_cast<double>(q[g * dim + d]) * rows.row(i)[d];
                            exact += x, size += std::fabs(x);
                        }
                        error.relative(static_cast<double>(out[g * 40 + i]), exact, size);
                    }
                    CHECK(out[g * 40 + n] == -7.0F);
                    for (std::size_t d = 0; d < dim; ++d) {
                        double exact = 1, size = 1;
                        for (std::size_t i = 0; i < n; ++i) {
                            const double x =
                                static_cast<double>(weight[g * simd::attend_block + i]) * rows.row(i)[d];
                            exact += x, size += std::fabs(x);
                        }
                        error.relative(static_cast<double>(acc[g * dim + d]), exact, size);
                    }
                }
                CHECK(error.value() <= 1e-6);
            }
}

TEST_CASE("quantise finds the nearest code, whose largest is 127") {
    oracle::generator random(10);
    for (std::size_t n = 1; n < 100; ++n) {
        const auto row = oracle::normal_values<float>(n, n, n % 3 == 0 ? 1e30 : 1e-5);
        std::vector<std::int8_t> codes(n + 1, 99);
        const float scale = simd::quantise(row.data(), codes.data(), n);
        double largest = 0;
        int most = 0;
        for (std::size_t i = 0; i < n; ++i) {
            largest = std::max(largest, std::fabs(static_cast<double>(row[i])));
            most = std::max(most, std::abs(static_cast<int>(codes[i])));
            CHECK(std::fabs(static_cast<double>(row[i]) / static_cast<double>(scale) - codes[i]) <= 0.50002);
        }
        CHECK(most == 127);
        CHECK(static_cast<double>(scale) == doctest::Approx(largest / 127).epsilon(1e-6));
        CHECK(codes[n] == 99);
        std::vector<float> back(n);
        simd::dequantise(codes.data(), scale, back.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(back[i] == static_cast<float>(codes[i]) * scale);
    }
}

TEST_CASE_TEMPLATE("codes of stored numbers are those of the same numbers as floats, whatever the length", E,
                   f16, bf16) {
    for (const std::size_t n : {1U, 7U, 16U, 31U, 64U, 80U, 100U}) {
        const auto stored = oracle::normal_values<E>(n, n);
        std::vector<float> wide(n);
        for (std::size_t i = 0; i < n; ++i) wide[i] = to_float(stored[i]);
        std::vector<std::int8_t> codes(n), expected(n);
        const float scale = simd::quantise(stored.data(), codes.data(), n);
        CHECK(scale == simd::quantise(wide.data(), expected.data(), n));
        CHECK(codes == expected);
        std::vector<E> back(n);
        simd::dequantise(codes.data(), scale, back.data(), n);
        for (std::size_t i = 0; i < n; ++i)
            CHECK(to_float(back[i]) == to_float(from_float<E>(static_cast<float>(codes[i]) * scale)));
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

} // namespace simd_codes_test
