// minmax_box: the score is Quest's sum and never below the product with a key of the unit.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_minmax_box.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace index_minmax_box_test {

using namespace kvtl;

namespace {

using state = minmax_box::state;

/// Equations 1 and 2, from the keys.
double quest(const auto& lane, const float* q, std::uint32_t h, std::uint32_t u) {
    double sum = 0;
    for (std::uint32_t c = 0; c < lane.shape().dim; ++c) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (std::uint32_t i = 0; i < lane.entries(u); ++i) {
            low = std::min(low, static_cast<double>(lane.key(u, i, h)[c]));
            high = std::max(high, static_cast<double>(lane.key(u, i, h)[c]));
        }
        sum += std::max(static_cast<double>(q[c]) * low, static_cast<double>(q[c]) * high);
    }
    return sum;
}

} // namespace

TEST_CASE("minmax_box") {
    static_assert(!scores_linearly<minmax_box>);
    kvtl_test::summarising_index_contract<minmax_box>([](const summary_shape&) { return state(); }, 0x1p-9,
                                                      [](const summary_shape& s) { return 4 * s.width(); },
                                                      [](const auto& lane, const float* q, std::uint32_t h,
                                                         std::uint32_t u,
                                                         std::uint32_t) { return quest(lane, q, h, u); });
}

TEST_CASE("no key of a unit scores higher than its box") {
    const state s;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        kvtl_test::index_suite::lane<minmax_box> x(
            s, {{2, 3, 64, 1 + static_cast<std::uint32_t>(seed)}, 30, true}, seed, 2.0);
        x.absorb_all();
        for (std::uint32_t h = 0; h < 2; ++h) {
            const auto q = oracle::normal_values<float>(3 * 64, seed + 500);
            const auto bound = x.score(q, 3, h);
            for (std::uint32_t g = 0; g < 3; ++g)
                for (std::uint32_t u = 0; u < 30; ++u)
                    for (std::uint32_t i = 0; i < x.entries(u); ++i) {
                        const double rounding =
                            64 * 0x1p-24 * oracle::dot_of_magnitudes(&q[g * 64], x.key(u, i, h), 64);
                        REQUIRE(static_cast<double>(bound[g * 30 + u]) + rounding >=
                                oracle::dot(&q[g * 64], x.key(u, i, h), 64));
                    }
        }
    }
}

TEST_CASE("bounds are rounded outwards to the nearest f16") {
    oracle::generator random(3);
    for (int round = 0; round < 20000; ++round) {
        const float x = static_cast<float>(random.normal() * std::exp2(random.uniform(-30.0, 15.9)));
        const float low = to_float(detail::round_down(x)), high = to_float(detail::round_up(x));
        if (std::fabs(x) <= 65504.0F) {
            REQUIRE(low <= x);
            REQUIRE(x <= high);
            REQUIRE(high - low <= std::max(0x1p-24F, std::fabs(x) * 0x1p-10F));
        }
    }
    for (const float x : {0.0F, 1.0F, -1.0F, 0.5F, 65504.0F, -65504.0F, 0x1p-24F, -0x1p-24F}) {
        CHECK(to_float(detail::round_down(x)) == x);
        CHECK(to_float(detail::round_up(x)) == x);
    }
    CHECK(to_float(detail::round_down(-1e-9F)) == -0x1p-24F);
    CHECK(to_float(detail::round_up(1e-9F)) == 0x1p-24F);
    CHECK(to_float(detail::round_down(1e-9F)) == 0.0F);
    CHECK(to_float(detail::round_up(1e6F)) == 65504.0F);
    CHECK(to_float(detail::round_down(-1e6F)) == -65504.0F);
}

} // namespace index_minmax_box_test
