// spread_gain: how far a unit's logits spread, and by how much that raises what the unit weighs.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/spread_gain.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace spread_gain_test {

using namespace kvtl::detail;

namespace {
using kvtl::simd::default_arch;
using numbers = kvtl::simd::floats<default_arch>;

float first_of(const numbers& x) {
    float all[kvtl::simd::floats_per_register<default_arch>];
    kvtl::simd::store<default_arch>(all, x);
    return all[0];
}
/// The bend of n entries.
numbers bend_of(std::uint32_t n) {
    float entries = static_cast<float>(n), m2 = 0, bend = 0;
    kvtl::simd::to_spreads({&entries, &m2, &bend}, 1);
    return numbers(bend);
}
double cautious(double sigma, std::uint32_t n) {
    return static_cast<double>(
        first_of(kvtl::simd::cautious_gain<default_arch>(numbers(static_cast<float>(sigma)), bend_of(n))));
}
double rms(double sigma, std::uint32_t n) {
    return static_cast<double>(
        first_of(kvtl::simd::rms_gain<default_arch>(numbers(static_cast<float>(sigma)), bend_of(n))));
}

/// Logarithms of the mean weight, and of the root mean square weight, of n normal logits whose mean is 0 and whose
/// standard deviation is sigma; means over many such units.
struct really {
    double mean = 0, rms = 0;

    really(double sigma, std::uint32_t n) {
        constexpr int units = 4000;
        oracle::generator random(11);
        for (int u = 0; u < units; ++u) {
            std::vector<double> x(n);
            double centre = 0, square = 0, sum = 0, squares = 0;
            for (double& one : x) one = random.normal(), centre += one / n;
            for (double& one : x) one -= centre, square += one * one / n;
            for (const double one : x) {
                const double logit = sigma * one / std::sqrt(square);
                sum += std::exp(logit) / n, squares += std::exp(2 * logit) / n;
            }
            mean += std::log(sum) / units, rms += std::log(squares) / 2 / units;
        }
    }
};
} // namespace

TEST_CASE("the gains are those of the formulas, and go on without a step at the bend") {
    for (const std::uint32_t n : {2U, 3U, 12U, 128U}) {
        CAPTURE(n);
        const double bend = std::sqrt(std::log(static_cast<double>(n)));
        for (const double part : {0.0, 0.1, 0.5, 1.0}) {
            CHECK(cautious(part * bend, n) == doctest::Approx(part * part * bend * bend / 2));
            CHECK(rms(part * bend / 2, n) == doctest::Approx(part * part * bend * bend / 4));
        }
        for (const double times : {1.0, 2.0, 10.0, 1000.0}) {
            CHECK(cautious(times * bend, n) ==
                  doctest::Approx(bend * bend / 2 + std::sqrt(1 + 2 * (times - 1) * bend) - 1));
            CHECK(rms(times * bend, n) == doctest::Approx((times - 0.25) * bend * bend));
        }
        CHECK(cautious(bend * 1.0001, n) - cautious(bend, n) < 0.001);
    }
}

TEST_CASE("entries that are equal gain nothing, however many; a unit without entries neither") {
    for (const std::uint32_t n : {0U, 1U, 4096U}) {
        CHECK(cautious(0, n) == 0);
        CHECK(rms(0, n) == 0);
    }
}

TEST_CASE("the gain of an estimate is never more than the best entry can reach") {
    // n numbers of mean 0 and standard deviation sigma: none is above sigma sqrt(n - 1).
    for (std::uint32_t n = 2; n <= 4096; n *= 2)
        for (double sigma = 0.01; sigma < 1e4; sigma *= 3) {
            CAPTURE(n);
            CAPTURE(sigma);
            CHECK(cautious(sigma, n) <= sigma * std::sqrt(n - 1.0));
        }
}

TEST_CASE("for normal logits the gains are what units really gain, where n entries can be trusted with it") {
    for (const std::uint32_t n : {4U, 12U, 32U})
        for (const double sigma : {0.1, 0.3, 0.45}) {
            CAPTURE(n);
            CAPTURE(sigma);
            const really gain(sigma, n);
            CHECK(cautious(sigma, n) == doctest::Approx(gain.mean).epsilon(0.05));
            CHECK(rms(sigma, n) == doctest::Approx(gain.rms).epsilon(0.12));
        }
}

TEST_CASE("beyond that an estimate stays well below what units gain, and a choice close to it") {
    for (const std::uint32_t n : {4U, 12U, 32U})
        for (const double sigma : {3.0, 9.0, 25.0}) {
            CAPTURE(n);
            CAPTURE(sigma);
            const really gain(sigma, n);
            CHECK(cautious(sigma, n) < 0.85 * gain.mean);
            CHECK(cautious(sigma, n) > 0.15 * gain.mean);
            CHECK(rms(sigma, n) == doctest::Approx(gain.rms).epsilon(0.25));
        }
}

TEST_CASE("spread_along: the lane's shape, seen by a query") {
    oracle::generator random(3);
    for (const std::uint32_t dim : {8U, 64U, 80U})
        for (const std::uint32_t heads : {1U, 3U}) {
            CAPTURE(dim);
            CAPTURE(heads);
            std::vector<float> spread(std::size_t{heads} * dim), q(dim);
            double total = 0, squares = 0;
            for (float& x : spread) {
                x = static_cast<float>(std::exp(2 * random.normal()));
                total += static_cast<double>(x);
            }
            for (float& x : q) {
                x = static_cast<float>(random.normal());
                squares += static_cast<double>(x * x);
            }
            kvtl::units_view units;
            units.dim = dim;
            CHECK(static_cast<double>(spread_along(q.data(), units)) ==
                  doctest::Approx(std::sqrt(squares / dim)));
            units.spread = spread;
            for (units.head = 0; units.head < heads; ++units.head) {
                double seen = 0;
                for (std::uint32_t d = 0; d < dim; ++d)
                    seen +=
                        static_cast<double>(spread[units.head * dim + d]) * static_cast<double>(q[d] * q[d]);
                CHECK(static_cast<double>(spread_along(q.data(), units)) ==
                      doctest::Approx(std::sqrt(seen / total)));
            }
            std::fill(spread.begin(), spread.end(), 0.0F); // nothing gathered yet
            units.head = 0;
            CHECK(static_cast<double>(spread_along(q.data(), units)) ==
                  doctest::Approx(std::sqrt(squares / dim)));
        }
}

} // namespace spread_gain_test
