// outliers: the list is what sorting everything and keeping the first would leave.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/outliers.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <map>
#include <vector>

namespace outliers_test {

using kvtl::detail::outlier;

TEST_CASE("agreement is the smallest cosine with the sum") {
    constexpr std::size_t n = 5, dim = 24, stride = 31;
    const auto keys = oracle::normal_values<float>(n * stride, 3);
    std::vector<float> sum(dim, 0.0F);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t c = 0; c < dim; ++c) sum[c] += keys[i * stride + c];
    double least = 2;
    for (std::size_t i = 0; i < n; ++i) {
        const float* k = &keys[i * stride];
        least =
            std::min(least, oracle::dot(k, sum.data(), dim) /
                                std::sqrt(oracle::dot(k, k, dim) * oracle::dot(sum.data(), sum.data(), dim)));
    }
    CHECK(static_cast<double>(kvtl::detail::agreement(keys.data(), n, stride, sum.data(), dim)) ==
          doctest::Approx(least).epsilon(1e-5));
    const std::vector<float> zero(dim, 0.0F);
    CHECK(kvtl::detail::agreement(zero.data(), 1, dim, sum.data(), dim) == 0.0F);
}

TEST_CASE("a list holds the units that agree least, the worst first, each once") {
    for (const std::size_t room : {1U, 2U, 7U}) {
        std::vector<outlier> list(room + 1);
        std::map<std::uint32_t, float> all; // the latest agreement of each unit
        std::vector<std::uint32_t> arrived; // in this order, for ties
        oracle::generator random(room);
        for (std::uint32_t u = 0; u < 60; ++u) {
            const auto agrees = static_cast<float>(random.below(12)) / 12.0F;
            kvtl::detail::enlist(list, {agrees, u});
            all[u] = agrees;
            arrived.push_back(u);
            std::stable_sort(arrived.begin(), arrived.end(),
                             [&](std::uint32_t a, std::uint32_t b) { return all[a] < all[b]; });
            const auto got = kvtl::detail::listed(list);
            REQUIRE(got.size() == std::min<std::size_t>(room, all.size()));
            for (std::size_t i = 0; i < got.size(); ++i) {
                CHECK(got[i].unit == arrived[i]);
                CHECK(got[i].agreement == all[arrived[i]]);
            }
        }
        // The worst unit, built anew, is in the list at its new place.
        const std::uint32_t worst = list[1].unit;
        kvtl::detail::enlist(list, {-1.0F, worst});
        CHECK(list[0].unit == room);
        CHECK(list[1].unit == worst);
        CHECK(list[1].agreement == -1.0F);
        for (std::size_t i = 2; i <= room; ++i) CHECK(list[i].unit != worst);
    }
}

} // namespace outliers_test
