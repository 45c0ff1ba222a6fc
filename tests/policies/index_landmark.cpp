// landmark: the score is the product with the mean key of the unit, however long it is and however units
// grow.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_landmark.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

namespace index_landmark_test {

using namespace kvtl;

namespace {

using state = landmark::state;
using lane = kvtl_test::index_suite::lane<landmark>;

double mean_product(const auto& x, const float* q, std::uint32_t h, std::uint32_t u) {
    double sum = 0;
    for (std::uint32_t i = 0; i < x.entries(u); ++i) sum += oracle::dot(q, x.key(u, i, h), x.shape().dim);
    return sum / x.entries(u);
}

} // namespace

TEST_CASE("landmark") {
    static_assert(scores_linearly<landmark>);
    kvtl_test::summarising_index_contract<landmark>([](const summary_shape&) { return state(); }, 0x1p-11,
                                                    [](const summary_shape& s) { return 2 * s.width(); },
                                                    [](const auto& x, const float* q, std::uint32_t h,
                                                       std::uint32_t u,
                                                       std::uint32_t) { return mean_product(x, q, h, u); });
}

TEST_CASE("a long unit's mean is as precise as a short one's") {
    const state s;
    lane x(s, {{1, 1, 64, 2000}, 3, true}, 5, 1.0);
    x.absorb_all();
    const auto q = oracle::normal_values<float>(64, 6);
    const auto got = x.score(q, 1, 0);
    for (std::uint32_t u = 0; u < 3; ++u) {
        const auto mean = oracle::moments_of(rows_view<float>{x.key(u, 0), 2000, 64, 64}).mean;
        double scale = 0;
        for (std::size_t c = 0; c < 64; ++c) scale += std::fabs(static_cast<double>(q[c]) * mean[c]);
        CHECK(std::fabs(static_cast<double>(got[u]) - mean_product(x, q.data(), 0, u)) < 0x1p-11 * scale);
    }
}

TEST_CASE("units may grow in turns") {
    const state s;
    lane x(s, {{2, 1, 16, 8}, 5, true}, 7, 1.0);
    for (std::uint32_t u = 0; u < 5; ++u) s.clear(x.view(u), u);
    for (std::uint32_t i = 0; i < 8; ++i)
        for (std::uint32_t u = 0; u < 5; ++u) s.absorb(x.view(u), u, i, x.key(u, i), x.key(u, i));
    const auto q = oracle::normal_values<float>(16, 8);
    const auto got = x.score(q, 1, 1);
    for (std::uint32_t u = 0; u < 5; ++u)
        CHECK(static_cast<double>(got[u]) == doctest::Approx(mean_product(x, q.data(), 1, u)).epsilon(1e-3));
}

TEST_CASE("outliers: the units whose keys agree least with their mean are pinned, as far as the budget's "
          "part goes") {
    const state s({.outliers = 5, .pinned = 0.25F}, {});
    constexpr std::uint32_t units = 40, entries = 6;
    for (const std::uint32_t heads : {1U, 3U}) {
        lane x(s, {{heads, 2, 32, entries}, units, true}, 11, 0.5);
        for (std::uint32_t u = 0; u < units; ++u) { // in one go, as groups are built
            s.clear(x.view(u), u);
            for (std::uint32_t i = 0; i < entries; ++i) s.absorb(x.view(u), u, i, x.key(u, i), x.key(u, i));
        }
        for (std::uint32_t h = 0; h < heads; ++h) {
            std::vector<std::pair<double, std::uint32_t>> agreement;
            for (std::uint32_t u = 0; u < units; ++u) {
                const auto mean =
                    oracle::moments_of(rows_view<float>{x.key(u, 0, h), entries, 32, heads * 32}).mean;
                double least = 2, length = 0;
                for (const double m : mean) length += m * m;
                for (std::uint32_t i = 0; i < entries; ++i) {
                    double product = 0;
                    for (std::size_t c = 0; c < 32; ++c)
                        product += mean[c] * static_cast<double>(x.key(u, i, h)[c]);
                    const double own = oracle::dot(x.key(u, i, h), x.key(u, i, h), 32);
                    least = std::min(least, product / std::sqrt(own * length));
                }
                agreement.emplace_back(least, u);
            }
            std::sort(agreement.begin(), agreement.end());
            for (const std::uint32_t budget : {0U, 23U, 24U, 100U, 1000U}) {
                std::vector<std::uint32_t> got, expected;
                s.pinned(x.table(h), h, budget, [&](std::uint32_t u) { got.push_back(u); });
                for (std::uint32_t i = 0; i < std::min(5U, budget / 4 / entries); ++i)
                    expected.push_back(agreement[i].second);
                CHECK(got == expected);
            }
        }
    }
}

TEST_CASE("a new lane forgets the outliers of the one before") {
    const state s({.outliers = 3, .pinned = 1.0F}, {});
    lane x(s, {{1, 1, 16, 4}, 9, true}, 12, 0.5);
    const auto pinned = [&] {
        std::vector<std::uint32_t> all;
        s.pinned(x.table(0), 0, 100, [&](std::uint32_t u) { all.push_back(u); });
        return all;
    };
    const auto build = [&](std::uint32_t u) {
        s.clear(x.view(u), u);
        for (std::uint32_t i = 0; i < 4; ++i) s.absorb(x.view(u), u, i, x.key(u, i), x.key(u, i));
    };
    for (std::uint32_t u = 0; u < 9; ++u) build(u);
    CHECK(pinned().size() == 3);
    build(0);
    CHECK(pinned() == std::vector<std::uint32_t>{0});
}

} // namespace index_landmark_test
