// Maxima, exponential sums and their logarithm, also where naive code overflows.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/softmax.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace simd_softmax_test {

namespace simd = kvtl::simd;
constexpr float inf = std::numeric_limits<float>::infinity();

TEST_CASE("max_of finds the maximum at every place of every length") {
    CHECK(simd::max_of(nullptr, 0) == -inf);
    for (std::size_t n = 1; n <= 130; ++n)
        for (std::size_t at = 0; at < n; ++at) {
            std::vector<float> x(n + 1, -3.0F);
            x[n] = 100.0F; // behind the end
            x[at] = -1.0F;
            REQUIRE(simd::max_of(x.data(), n) == -1.0F);
        }
}

TEST_CASE("max_of_each folds runs of every width in place") {
    for (std::size_t width = 1; width <= 40; ++width)
        for (const std::size_t n : {0U, 1U, 2U, 3U, 17U, 50U}) {
            auto x = oracle::normal_values(n * width + 1, static_cast<unsigned>(width), 5.0);
            if (n > 1) x[width] = -inf;
            const auto before = x;
            simd::max_of_each(x.data(), n, width);
            for (std::size_t i = 0; i < n; ++i) {
                const auto first = before.begin() + static_cast<std::ptrdiff_t>(i * width);
                REQUIRE(x[i] == *std::max_element(first, first + static_cast<std::ptrdiff_t>(width)));
            }
            REQUIRE(x[n * width] == (n * width == 0 ? before[0] : before[n * width]));
        }
}

TEST_CASE("exp_shifted_sum") {
    for (std::size_t n = 0; n <= 130; ++n) {
        auto x = oracle::normal_values(n + 1, n, 5.0);
        const auto before = x;
        x[n] = 42.0F;
        const float shift = simd::max_of(before.data(), n);
        const float sum = simd::exp_shifted_sum(x.data(), n, shift);
        double exact = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double weight = std::exp(static_cast<double>(before[i] - shift));
            exact += weight;
            CHECK(oracle::value(x[i]) == doctest::Approx(weight).epsilon(1e-6));
        }
        CHECK(static_cast<double>(sum) == doctest::Approx(exact).epsilon(1e-6));
        CHECK(x[n] == 42.0F);
    }
}

TEST_CASE("exp_shifted_sum scales what it has shifted") {
    for (const std::size_t n : {1U, 15U, 16U, 17U, 100U}) {
        auto x = oracle::normal_values(n, n, 20.0);
        const auto before = x;
        const float sum = simd::exp_shifted_sum(x.data(), n, 3.0F, 0.125F);
        double exact = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double weight = std::exp(0.125 * (oracle::value(before[i]) - 3.0));
            exact += weight;
            CHECK(oracle::value(x[i]) == doctest::Approx(weight).epsilon(1e-5));
        }
        CHECK(static_cast<double>(sum) == doctest::Approx(exact).epsilon(1e-5));
    }
}

TEST_CASE("absent logits weigh nothing") {
    std::vector<float> x(40, -inf);
    x[17] = 2.0F;
    x[39] = 2.0F;
    CHECK(simd::exp_shifted_sum(x.data(), 40, 2.0F) == 2.0F);
    CHECK(x[16] == 0.0F);
    CHECK(x[17] == 1.0F);
}

TEST_CASE("log_sum_exp") {
    for (const unsigned n : {1U, 2U, 15U, 16U, 17U, 130U, 5000U})
        for (const double offset : {0.0, 1e4, -1e4, 3e6}) {
            auto x = oracle::normal_values(n, n, 4.0);
            double largest = -1e300, sum = 0;
            for (float& v : x) {
                v += static_cast<float>(offset);
                largest = std::max(largest, oracle::value(v));
            }
            for (const float v : x) sum += std::exp(oracle::value(v) - largest);
            CHECK(static_cast<double>(simd::log_sum_exp(x.data(), n)) ==
                  doctest::Approx(largest + std::log(sum)).epsilon(1e-6));
        }
    const std::vector<float> absent(20, -inf);
    CHECK(simd::log_sum_exp(absent.data(), 20) == -inf);
    CHECK(simd::log_sum_exp(absent.data(), 0) == -inf);
    const float one[] = {1.0F, inf, -inf};
    CHECK(simd::log_sum_exp(one, 3) == inf);
}

} // namespace simd_softmax_test
