// Running mean and spread against the two-pass definition in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/moments.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_moments_test {

namespace simd = kvtl::simd;

namespace {

template <class E>
void compare(const oracle::moments& exact, const std::vector<float>& mean, float m2, double spread) {
    oracle::largest_error worst;
    for (std::size_t d = 0; d < exact.mean.size(); ++d)
        worst.relative(oracle::value(mean[d]), exact.mean[d], spread);
    CHECK(worst.value() < 1e-5);
    CHECK(static_cast<double>(m2) == doctest::Approx(exact.m2).epsilon(2e-5));
}

} // namespace

TEST_CASE_TEMPLATE("absorbing one by one equals computing afresh", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {1U, 7U, 16U, 64U, 80U, 100U, 128U, 130U}) {
        oracle::table<E> rows(60, dim, dim + 3, dim, 2.0);
        std::vector<float> mean(dim + 1, 0.0F);
        mean[dim] = 5.0F;
        float m2 = 0;
        for (std::uint32_t n = 0; n < 60; ++n) {
            const float announced = simd::tentative_m2(rows.row(n), dim, n, mean.data(), m2);
            simd::absorb(rows.row(n), dim, n, mean.data(), m2);
            CHECK(announced == doctest::Approx(m2).epsilon(1e-6));
            if (n % 7 == 0 || n == 59) {
                const auto exact = oracle::moments_of(rows.view().slice(0, n + 1));
                std::vector<float> got(mean.begin(), mean.begin() + dim);
                compare<E>(exact, got, m2, 2.0);
            }
        }
        CHECK(mean[dim] == 5.0F);
    }
}

TEST_CASE_TEMPLATE("mean_and_m2 of all rows and of a list of rows", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {1U, 17U, 64U, 96U, 128U, 131U})
        for (const unsigned count : {1U, 2U, 3U, 33U, 1000U}) {
            oracle::table<E> rows(count, dim, dim + 1, dim + count, 3.0);
            std::vector<float> mean(dim);
            const float m2 = simd::mean_and_m2(rows.view(), mean.data());
            compare<E>(oracle::moments_of(rows.view()), mean, m2, 3.0);

            oracle::generator random(count);
            std::vector<std::uint32_t> chosen(count / 2 + 1);
            oracle::table<E> copy(chosen.size(), dim, dim, 0);
            for (std::size_t i = 0; i < chosen.size(); ++i) {
                chosen[i] = static_cast<std::uint32_t>(random.below(count));
                std::copy_n(rows.row(chosen[i]), dim, copy.row(i));
            }
            const float chosen_m2 = simd::mean_and_m2(rows.view(), chosen, mean.data());
            compare<E>(oracle::moments_of(copy.view()), mean, chosen_m2, 3.0);
        }
    std::vector<float> mean(64, 1.0F);
    CHECK(simd::mean_and_m2(kvtl::rows_view<E>{nullptr, 0, 64, 64}, mean.data()) == 0.0F);
    CHECK(mean == std::vector<float>(64, 0.0F));
}

TEST_CASE_TEMPLATE("add_squares gathers m2 by dimension", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {1U, 7U, 16U, 64U, 80U, 100U, 130U}) {
        const oracle::table<E> rows(40, dim, dim + 3, dim, 2.0);
        std::vector<float> mean(dim, 0.0F), one_by_one(dim + 1, 0.0F), afresh(dim, 0.0F);
        one_by_one[dim] = 5.0F;
        float m2 = 0;
        for (std::uint32_t n = 0; n < 40; ++n) {
            const float share = static_cast<float>(n) / static_cast<float>(n + 1);
            simd::add_squares(rows.view().row(n), dim, mean.data(), share, one_by_one.data());
            simd::absorb(rows.view().row(n), dim, n, mean.data(), m2);
        }
        for (std::uint32_t n = 0; n < 40; ++n)
            simd::add_squares(rows.view().row(n), dim, mean.data(), 1.0F, afresh.data());
        const auto exact = oracle::moments_of(rows.view());
        for (std::size_t d = 0; d < dim; ++d) {
            double squares = 0;
            for (std::uint32_t n = 0; n < 40; ++n)
                squares += std::pow(oracle::value(rows.view().row(n)[d]) - exact.mean[d], 2);
            CHECK(static_cast<double>(one_by_one[d]) == doctest::Approx(squares).epsilon(2e-5));
            CHECK(static_cast<double>(afresh[d]) == doctest::Approx(squares).epsilon(2e-5));
        }
        CHECK(one_by_one[dim] == 5.0F);
    }
}

TEST_CASE("the spread of distant, tight clusters is not lost in their distance") {
    oracle::table<float> rows(500, 64, 64, 9, 0.01);
    for (float& x : rows.memory) x += 100.0F;
    std::vector<float> mean(64, 0.0F);
    float m2 = 0;
    for (std::uint32_t n = 0; n < 500; ++n) simd::absorb(rows.row(n), 64, n, mean.data(), m2);
    const auto exact = oracle::moments_of(rows.view());
    CHECK(static_cast<double>(m2) == doctest::Approx(exact.m2).epsilon(2e-3));
}

} // namespace simd_moments_test
