// centroid_spread: the score is the logarithm of the root mean square weight of normal keys.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_centroid_spread.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

namespace index_centroid_spread_test {

using namespace kvtl;

TEST_CASE("without spread it is the centroid") {
    static_assert(centroid_spread::needs_means && needs_spread<centroid_spread>);
    static_assert(!scores_linearly<centroid_spread>);
    kvtl_test::index_contract<centroid_spread>(
        {}, [](const float* q, const float* mean, std::size_t dim) { return oracle::dot(q, mean, dim); });
}

TEST_CASE("the score is that of the formula, for any number of units and queries") {
    std::uint32_t narrow = 0, wide = 0;
    for (const std::uint32_t dim : {8U, 64U, 80U}) {
        const centroid_spread::state s({}, *kvtl::geometry::from({1, 1, 1, dim}));
        for (const std::uint32_t units : {1U, 63U, 64U, 65U, 200U}) {
            kvtl_test::index_suite::means table(units, dim, dim + 2, units);
            const auto m2 = oracle::normal_values(units, 7);
            for (std::uint32_t u = 0; u < units; ++u) table.unit[u].m2 = 9.0F * m2[u] * m2[u];
            const auto q = oracle::normal_values(std::size_t{3} * dim, dim);
            auto spread = oracle::normal_values(dim, dim + 1); // of the lane, by dimension
            double total = 0;
            for (float& x : spread) x *= x, total += static_cast<double>(x);
            std::vector<float> out(std::size_t{3} * units);
            units_view view = table.view();
            view.spread = spread;
            s.score(q.data(), 3, view, out);
            for (std::uint32_t g = 0; g < 3; ++g)
                for (std::uint32_t u = 0; u < units; ++u) {
                    const float* query = &q[std::size_t{g} * dim];
                    const double n = table.unit[u].entries, root = std::sqrt(static_cast<double>(dim));
                    double along = 0;
                    for (std::uint32_t d = 0; d < dim; ++d)
                        along +=
                            static_cast<double>(query[d] * query[d]) * static_cast<double>(spread[d]) / total;
                    const double variance = along * static_cast<double>(table.unit[u].m2) / (n * dim);
                    const bool trusted = 4 * variance <= std::log(n);
                    const double gain =
                        trusted ? variance : std::sqrt(variance * std::log(n)) - std::log(n) / 4;
                    (trusted ? narrow : wide) += 1;
                    const double exact = oracle::dot(query, table.rows.view().row(u), dim) + root * gain;
                    REQUIRE(static_cast<double>(out[g * units + u]) ==
                            doctest::Approx(exact).epsilon(1e-4).scale(10));
                }
        }
    }
    CHECK(narrow > 100); // both sides of the bend are met
    CHECK(wide > 100);
}

TEST_CASE("the root mean square of weights over normal keys is what the score says") {
    constexpr std::uint32_t dim = 16, keys = 200000;
    oracle::generator random(3);
    const auto q = oracle::normal_values(dim, 4), mean = oracle::normal_values(dim, 5);
    const double deviation = 0.4;
    double squares = 0, m2 = 0;
    std::vector<float> spread(dim);
    for (std::uint32_t i = 0; i < keys; ++i) {
        double logit = 0;
        for (std::uint32_t d = 0; d < dim; ++d) {
            const double off = (d % 2 == 0 ? 0.1 : deviation) * random.normal();
            m2 += off * off;
            spread[d] += static_cast<float>(off * off);
            logit += static_cast<double>(q[d]) * (static_cast<double>(mean[d]) + off);
        }
        squares += std::exp(2 * logit / 4); // sqrt(D) = 4
    }
    unit_record unit;
    unit.entries = keys;
    unit.m2 = static_cast<float>(m2);
    units_view u;
    u.unit = &unit, u.count = 1, u.dim = dim, u.spread = spread;
    u.mean = unit_means(rows_view<float>{mean.data(), 1, dim, dim});
    float score = 0;
    const centroid_spread::state s({}, *kvtl::geometry::from({1, 1, 1, dim}));
    s.score(q.data(), 1, u, {&score, 1});
    CHECK(static_cast<double>(score) / 4 == doctest::Approx(0.5 * std::log(squares / keys)).epsilon(0.01));
}

} // namespace index_centroid_spread_test
