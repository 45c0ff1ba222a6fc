// Rows of units beside their means: what they weigh, what errors they leave, how far their values tilt; against
// double precision, for every length of a row's last register.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/spread_gain.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace simd_spread_gain_test {

using namespace kvtl;

namespace {
double cautious(double sigma, double bend) {
    const double square = std::min(sigma, bend);
    return square * square / 2 + std::sqrt(1 + 2 * (sigma - square)) - 1;
}
double rms(double sigma, double bend) {
    const double square = std::min(2 * sigma, bend);
    return square * (2 * sigma - square / 2) / 2;
}
} // namespace

TEST_CASE("rows of units: weights, prices and tilts are those of the formulas") {
    oracle::generator random(7);
    for (std::size_t n = 0; n <= 35; ++n)
        for (const float along : {0.0F, 0.7F, 9.0F}) {
            CAPTURE(n);
            CAPTURE(along);
            std::vector<double> entries(n), m2(n);
            // A number behind each row must stay as it is.
            std::vector<float> log(n + 1, 77.0F), deviation(n + 1, 77.0F), bend(n + 1, 77.0F),
                logit(n + 1, 77.0F), weight(n + 1, 77.0F), price(n + 1, 77.0F), score(n + 1, 77.0F);
            for (std::size_t i = 0; i < n; ++i) {
                entries[i] = static_cast<double>(random.below(20));
                m2[i] = entries[i] > 1 ? entries[i] * std::exp(random.normal()) : 0;
                log[i] = static_cast<float>(entries[i]), deviation[i] = static_cast<float>(m2[i]);
                logit[i] = static_cast<float>(3 * random.normal()), price[i] = score[i] = 0.5F;
            }
            const simd::unit_spreads spreads{log.data(), deviation.data(), bend.data()};
            simd::to_spreads(spreads, n);
            simd::log_weights(logit.data(), n, along, spreads, weight.data());
            simd::add_prices(logit.data(), n, along, 1.5F, 2.0F, 12.0F, 0.3F, spreads, price.data());
            simd::add_rms_gain(score.data(), n, along, 2.0F, spreads);
            const float tilt = simd::bounded_spread(logit.data(), n, along, spreads);
            double tilts = 0, sizes = 0;
            for (std::size_t i = 0; i < n; ++i) {
                CAPTURE(i);
                const double a = m2[i] / std::max(1.0, entries[i]), sigma = double{along} * std::sqrt(a),
                             wide = entries[i] > 0 ? std::sqrt(std::log(entries[i])) : 0,
                             z = double{logit[i]};
                if (entries[i] > 0)
                    CHECK(double{weight[i]} ==
                          doctest::Approx(z + std::log(entries[i]) + cautious(sigma, wide)));
                else
                    CHECK(std::isinf(weight[i]));
                CHECK(double{price[i]} ==
                      doctest::Approx(0.5 +
                                      0.3 * std::exp(std::min(12.0, 2 * (z + rms(1.5 * sigma, wide) - 2))) *
                                          (1 - std::exp(-sigma * sigma))));
                CHECK(double{score[i]} == doctest::Approx(0.5 + 2 * rms(sigma, wide)));
                tilts += z * a * (sigma > wide ? wide / sigma : 1), sizes += std::fabs(z) * a;
            }
            CHECK(std::fabs(double{tilt} - tilts) <= 1e-6 * sizes);
            for (const std::vector<float>* row : {&log, &deviation, &bend, &logit, &weight, &price, &score})
                CHECK(row->back() == 77.0F);
        }
}

} // namespace simd_spread_gain_test
