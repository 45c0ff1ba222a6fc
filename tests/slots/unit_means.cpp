// Means of 32, 16 and 8 bits: what is read, scored and measured is what was stored, against double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/slots/unit_means.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

using namespace kvtl;

namespace {

struct table {
    table(std::uint32_t units, std::uint32_t width, std::uint32_t bits)
        : numbers(std::size_t{units} * width * bits / 8 / 8 + 2), scale(units),
          means(reinterpret_cast<std::byte*>(numbers.data()), scale.data(), bits, width, width) {}
    std::vector<std::uint64_t> numbers;
    std::vector<float> scale;
    unit_means means;
};

/// Of the largest number: half a step.
double rounding(std::uint32_t bits) {
    return bits == 8 ? 0.502 / 127 : bits == 16 ? 0x1.01p-11 : 0.0;
}

} // namespace

TEST_CASE("means come back rounded to half a step, scores and distances are those of what comes back") {
    std::uint64_t seed = 1;
    for (const std::uint32_t bits : {8U, 16U, 32U})
        for (const std::uint32_t width : {1U, 7U, 64U, 80U, 129U})
            for (const std::uint32_t units : {1U, 3U, 4U, 31U, 70U}) {
                CAPTURE(bits);
                CAPTURE(width);
                CAPTURE(units);
                const table t(units, width, bits);
                std::vector<std::vector<float>> back(units, std::vector<float>(width));
                for (std::uint32_t u = 0; u < units; ++u) {
                    const auto mean = oracle::normal_values<float>(width, ++seed, 3.0);
                    t.means.set(u, mean.data());
                    t.means.get(u, back[u].data());
                    float largest = 0;
                    for (const float x : mean) largest = std::max(largest, std::fabs(x));
                    for (std::uint32_t d = 0; d < width; ++d)
                        REQUIRE(std::fabs(static_cast<double>(back[u][d] - mean[d])) <=
                                rounding(bits) * static_cast<double>(largest));
                }
                const std::uint32_t first = width / 3, some = width - first;
                const unit_means head = t.means.columns(first, some);
                const std::uint32_t queries = 1 + units % 5;
                const auto q = oracle::normal_values<float>(std::size_t{queries} * some, ++seed);
                std::vector<float> score(std::size_t{queries} * units + 1, 4711.0F),
                    distance(units + 1, 4711.0F);
                head.score(q.data(), queries, units, score.data());
                head.distances(q.data(), units, distance.data());
                CHECK(score.back() == 4711.0F);
                CHECK(distance.back() == 4711.0F);
                oracle::largest_error of_scores, of_distances;
                for (std::uint32_t u = 0; u < units; ++u) {
                    double apart = 0;
                    for (std::uint32_t d = 0; d < some; ++d) {
                        const double x = static_cast<double>(q[d]) - static_cast<double>(back[u][first + d]);
                        apart += x * x;
                    }
                    of_distances.relative(static_cast<double>(distance[u]), apart, apart + 1e-1);
                    for (std::uint32_t g = 0; g < queries; ++g)
                        of_scores.relative(
                            static_cast<double>(score[std::size_t{g} * units + u]),
                            oracle::dot(&q[std::size_t{g} * some], &back[u][first], some),
                            oracle::dot_of_magnitudes(&q[std::size_t{g} * some], &back[u][first], some) +
                                1e-6);
                }
                CHECK(of_scores.value() < 1e-6);
                CHECK(of_distances.value() < 1e-6);
            }
}

TEST_CASE("a mean may be copied, and zeros are zeros") {
    for (const std::uint32_t bits : {8U, 16U, 32U}) {
        const table t(3, 20, bits);
        const std::vector<float> zeros(20, 0.0F);
        t.means.set(0, zeros.data());
        t.means.set(1, oracle::normal_values<float>(20, 9).data());
        t.means.set(2, zeros.data());
        std::vector<float> one(20), two(20);
        t.means.get(0, one.data());
        CHECK(one == zeros);
        t.means.copy(1, 2);
        t.means.get(1, one.data());
        t.means.get(2, two.data());
        CHECK(one == two);
        CHECK(one != zeros);
    }
    CHECK_FALSE(unit_means());
    CHECK(unit_means::valid_bits(16));
    CHECK_FALSE(unit_means::valid_bits(4));
}
