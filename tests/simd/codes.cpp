// Products with signed bytes and E4M3 codes, and sums of table entries, against double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/attend.hpp>
#include <kvtl/simd/dot.hpp>
#include <kvtl/simd/lookup.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace simd_codes_test {

using namespace kvtl;

namespace {

/// The number of a code by the definition of E4M3, in kernels' units of 2^-8; NaN has no number.
double by_definition(unsigned bits) {
    const double sign = (bits & 0x80U) != 0 ? -1 : 1, mantissa = bits & 7U;
    const int exponent = static_cast<int>(bits >> 3 & 15U);
    return sign * (exponent == 0 ? std::ldexp(mantissa / 8, -6 - 8)
                                 : std::ldexp(1 + mantissa / 8, exponent - 7 - 8));
}
simd::e4m3 code_of(unsigned bits) {
    return {static_cast<std::uint8_t>(bits)};
}
template <class Code> Code random_code(oracle::generator& random) {
    return std::bit_cast<Code>(static_cast<std::uint8_t>(random.below(256)));
}

} // namespace

TEST_CASE("all 256 codes of E4M3 are read as the definition has them, at every place of a register") {
    constexpr std::size_t lanes = simd::floats_per_register<simd::default_arch>;
    std::vector<simd::e4m3> codes;
    for (unsigned bits = 0; bits < 256 + lanes; ++bits) codes.push_back(code_of(bits % 256));
    for (unsigned first = 0; first < 256; ++first) {
        float all[lanes], part[lanes];
        simd::store<simd::default_arch>(all, simd::load<simd::default_arch>(&codes[first]));
        simd::store<simd::default_arch>(part, simd::load_part<simd::default_arch>(&codes[first], lanes - 1));
        for (std::size_t i = 0; i < lanes; ++i) {
            const double number = by_definition((first + static_cast<unsigned>(i)) % 256);
            CHECK(static_cast<double>(all[i]) == number);
            CHECK(std::signbit(all[i]) == std::signbit(number));
            CHECK(static_cast<double>(part[i]) == (i + 1 < lanes ? number : 0.0));
        }
        CHECK(static_cast<double>(simd::code_value(codes[first])) == by_definition(first));
    }
}

TEST_CASE("a number becomes the nearest code of E4M3, of two the even one, and at most the largest") {
    std::vector<double> numbers;
    for (unsigned bits = 0; bits < 0x7F; ++bits) {
        numbers.push_back(by_definition(bits));
        CHECK(simd::to_code<simd::e4m3>(static_cast<float>(numbers[bits])) == code_of(bits));
        CHECK(simd::to_code<simd::e4m3>(static_cast<float>(-numbers[bits])) == code_of(bits | 0x80U));
    }
    for (unsigned bits = 0; bits + 1 < 0x7F; ++bits) {
        const auto middle = static_cast<float>((numbers[bits] + numbers[bits + 1]) / 2);
        CHECK(simd::to_code<simd::e4m3>(middle) == code_of(bits + (bits & 1U)));
        CHECK(simd::to_code<simd::e4m3>(std::nextafter(middle, 0.0F)) == code_of(bits));
        CHECK(simd::to_code<simd::e4m3>(std::nextafter(middle, 2.0F)) == code_of(bits + 1));
    }
    for (const float x : {1.76F, 2.0F, 1e30F, INFINITY, NAN}) {
        CHECK(simd::to_code<simd::e4m3>(x) == code_of(0x7E));
        CHECK(simd::to_code<simd::e4m3>(-x) == code_of(0xFE));
    }
    oracle::generator random(3);
    for (int i = 0; i < 2000; ++i) {
        const auto x =
            static_cast<float>(std::ldexp(random.uniform() + 1, -static_cast<int>(random.below(20))));
        const double got = by_definition(simd::to_code<simd::e4m3>(x).bits);
        double least = 9;
        for (const double number : numbers)
            least = std::min(least, std::fabs(number - static_cast<double>(x)));
        CHECK(std::fabs(got - static_cast<double>(x)) == least);
    }
}

TEST_CASE_TEMPLATE("inner products with codes", Code, std::int8_t, simd::e4m3) {
    oracle::generator random(1);
    for (std::size_t n = 0; n < 200; ++n) {
        const auto q = oracle::normal_values<float>(n, n + 1);
        std::vector<Code> code(n);
        double exact = 0, scale = 1e-30;
        for (std::size_t i = 0; i < n; ++i) {
            code[i] = random_code<Code>(random);
            const double x = static_cast<double>(q[i]) * static_cast<double>(simd::code_value(code[i]));
            exact += x;
            scale += std::fabs(x);
        }
        CHECK(std::fabs(static_cast<double>(simd::dot(q.data(), code.data(), n)) - exact) <= 1e-6 * scale);
    }
}

TEST_CASE_TEMPLATE("scores and sums of rows of codes, for whole groups of queries", Code, std::int8_t,
                   simd::e4m3) {
    oracle::generator random(9);
    for (const std::size_t dim : {1U, 7U, 8U, 50U, 64U, 80U, 96U, 128U, 131U})
        for (const std::size_t group : {1U, 3U, 4U, 7U})
            for (const std::size_t n : {1U, 3U, 4U, 18U, 32U}) {
                CAPTURE(dim);
                CAPTURE(group);
                CAPTURE(n);
                const std::size_t stride = dim + 5; // as with a scale before each row
                std::vector<Code> codes(n * stride, std::bit_cast<Code>(std::uint8_t{99}));
                for (std::size_t i = 0; i < n; ++i)
                    for (std::size_t d = 0; d < dim; ++d) codes[i * stride + d] = random_code<Code>(random);
                const auto value = [&](std::size_t i, std::size_t d) {
                    return static_cast<double>(simd::code_value(codes[i * stride + d]));
                };
                const rows_view<Code> rows{codes.data(), n, dim, stride};
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
                            const double x = static_cast<double>(q[g * dim + d]) * value(i, d);
                            exact += x, size += std::fabs(x);
                        }
                        error.relative(static_cast<double>(out[g * 40 + i]), exact, size);
                    }
                    CHECK(out[g * 40 + n] == -7.0F);
                    for (std::size_t d = 0; d < dim; ++d) {
                        double exact = 1, size = 1;
                        for (std::size_t i = 0; i < n; ++i) {
                            const double x =
                                static_cast<double>(weight[g * simd::attend_block + i]) * value(i, d);
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

TEST_CASE_TEMPLATE("quantise scales the largest number to the largest code of E4M3", E, float, f16, bf16) {
    for (std::size_t n = 1; n < 100; ++n) {
        const auto row = oracle::normal_values<E>(n, n);
        std::vector<simd::e4m3> codes(n + 1, code_of(99));
        const float scale = simd::quantise(row.data(), codes.data(), n);
        float largest = 0;
        for (const E x : row) largest = std::max(largest, std::fabs(to_float(x)));
        CHECK(scale == largest / 1.75F);
        std::vector<E> back(n);
        simd::dequantise(codes.data(), scale, back.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
            CHECK(codes[i] == simd::to_code<simd::e4m3>(to_float(row[i]) / scale));
            CHECK(to_float(back[i]) == to_float(from_float<E>(simd::code_value(codes[i]) * scale)));
        }
        CHECK(codes[n] == code_of(99));
    }
    const std::vector<float> nothing(70, 0.0F);
    std::vector<simd::e4m3> codes(70, code_of(99));
    CHECK(simd::quantise(nothing.data(), codes.data(), 70) == 0.0F);
    CHECK(codes == std::vector<simd::e4m3>(70));
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

TEST_CASE("expand_levels: the level that each code names, of 2, 3 and 4 bits") {
    oracle::generator random(5);
    const auto check = [&](auto bits) {
        const auto level = oracle::normal_values<float>(std::size_t{1} << bits, bits);
        for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 64U, 120U}) {
            const std::size_t whole = (n + 7) / 8 * 8;
            std::vector<std::byte> codes(whole / 8 * bits, std::byte{0});
            std::vector<std::size_t> code(n);
            for (std::size_t i = 0; i < n; ++i) {
                code[i] = random.below(level.size());
                for (std::size_t b = 0; b < bits; ++b)
                    if ((code[i] >> b & 1U) != 0)
                        codes[(i * bits + b) / 8] |= static_cast<std::byte>(1U << ((i * bits + b) % 8));
            }
            std::vector<float> out(whole + 1, -7.0F);
            simd::expand_levels<bits>(codes.data(), n, level.data(), out.data());
            for (std::size_t i = 0; i < n; ++i) CHECK(out[i] == level[code[i]]);
            CHECK(out[whole] == -7.0F);
        }
    };
    check(simd::constant<2>{});
    check(simd::constant<3>{});
    check(simd::constant<4>{});
}

} // namespace simd_codes_test
