// spread_gain: the logarithm of a mean weight, as far as n entries can be trusted with it.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/spread_gain.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace spread_gain_test {

using kvtl::detail::spread_bend;
using kvtl::detail::spread_gain;

namespace {
double gain(double sigma, std::uint32_t n) {
    return static_cast<double>(spread_gain(static_cast<float>(sigma), spread_bend(n)));
}
} // namespace

TEST_CASE("half the variance up to the bend, from there on a line that continues it") {
    for (const std::uint32_t n : {2U, 3U, 12U, 128U}) {
        CAPTURE(n);
        const double bend = std::sqrt(std::log(static_cast<double>(n)));
        for (const double part : {0.0, 0.1, 0.5, 1.0})
            CHECK(gain(part * bend, n) == doctest::Approx(part * part * bend * bend / 2));
        for (const double times : {1.0, 2.0, 10.0, 1000.0})
            CHECK(gain(times * bend, n) == doctest::Approx((times - 0.5) * bend * bend));
    }
}

TEST_CASE("one entry gains nothing, however long the query; neither do equal ones, however many") {
    CHECK(gain(0, 1) == 0);
    CHECK(gain(1e6, 1) == 0);
    CHECK(gain(0, 4096) == 0);
    CHECK(gain(3, 0) == 0); // a unit that holds nothing yet
}

TEST_CASE("the gain is never more than the best entry can reach") {
    // n numbers of mean 0 and standard deviation sigma: none is above sigma sqrt(n - 1).
    for (std::uint32_t n = 2; n <= 4096; n *= 2)
        for (double sigma = 0.01; sigma < 1e4; sigma *= 3) {
            CAPTURE(n);
            CAPTURE(sigma);
            CHECK(gain(sigma, n) <= sigma * std::sqrt(n - 1.0));
        }
}

TEST_CASE("for normal logits it lies below the mean of what units really gain where that is uncertain") {
    oracle::generator random(11);
    for (const std::uint32_t n : {4U, 12U, 32U})
        for (const double sigma : {0.3, 0.6, 1.0, 3.0, 9.0}) {
            CAPTURE(n);
            CAPTURE(sigma);
            constexpr int units = 4000;
            double mean = 0;
            for (int u = 0; u < units; ++u) {
                std::vector<double> x(n);
                double centre = 0, square = 0, sum = 0;
                for (double& one : x) one = random.normal(), centre += one / n;
                for (double& one : x) one -= centre, square += one * one / n;
                for (const double one : x) sum += std::exp(sigma * one / std::sqrt(square));
                mean += std::log(sum / n) / units;
            }
            const double known = gain(sigma, n);
            CHECK(known < 1.12 * mean);
            CHECK(known > 0.55 * mean);
            if (sigma < 0.5) CHECK(known == doctest::Approx(mean).epsilon(0.05));
        }
}

} // namespace spread_gain_test
