// k-means assignment against the nearest centroid in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/assign.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_assign_test {

namespace simd = kvtl::simd;

namespace {

struct assignment {
    std::vector<std::uint32_t> label;
    std::vector<float> distance;
};

template <class E> assignment assign(kvtl::rows_view<E> points, const std::vector<float>& centroids) {
    const std::size_t count = centroids.size() / points.dim;
    std::vector<float> half(count);
    for (std::size_t c = 0; c < count; ++c) {
        const float* row = centroids.data() + c * points.dim;
        half[c] = static_cast<float>(oracle::dot(row, row, points.dim) / 2);
    }
    assignment got{std::vector<std::uint32_t>(points.count + 1, 77U),
                   std::vector<float>(points.count + 1, -7.0F)};
    simd::kmeans_assign(points, centroids.data(), count, half.data(), got.label.data(), got.distance.data());
    CHECK(got.label[points.count] == 77U);
    CHECK(got.distance[points.count] == -7.0F);
    return got;
}

} // namespace

TEST_CASE_TEMPLATE("every point gets its nearest centroid", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {1U, 3U, 16U, 64U, 70U, 80U, 96U, 127U, 128U, 129U, 200U})
        for (const unsigned count : {1U, 2U, 15U, 17U, 31U, 32U, 33U, 100U})
            for (const unsigned n : {1U, 5U, 6U, 7U, 8U, 9U, 50U}) {
                const oracle::table<E> points(n, dim, dim + 3, dim + n);
                const auto centroids = oracle::normal_values(std::size_t{count} * dim, count + 1);
                const auto got = assign(points.view(), centroids);
                const kvtl::rows_view<float> c{centroids.data(), count, dim, dim};
                oracle::largest_error regret, error;
                for (std::size_t i = 0; i < n; ++i) {
                    REQUIRE(got.label[i] < count);
                    // Near ties may be decided either way; a wrong decision costs far more than rounding.
                    const double nearest = oracle::nearest(points.view().row(i), c).distance;
                    const double chosen = oracle::l2sq(points.view().row(i), c.row(got.label[i]), dim);
                    const double size = oracle::dot(points.view().row(i), points.view().row(i), dim) + 1;
                    regret.see((chosen - nearest) / size);
                    error.relative(oracle::value(got.distance[i]), chosen);
                }
                constexpr bool cut =
                    simd::has_bf16_products<simd::default_arch> && std::is_same_v<E, kvtl::bf16>;
                CHECK(regret.value() < (cut ? 8e-6 : 1e-6)); // 2^-17 of a product
                CHECK(error.value() < 2e-6);
            }
}

TEST_CASE("ties go to the lower index, in one block and across blocks") {
    for (const unsigned n : {3U, 40U})
        for (const unsigned dim : {64U, 100U, 300U}) {
            const oracle::table<float> points(n, dim, dim, 5);
            auto centroids = oracle::normal_values(std::size_t{200} * dim, 6);
            for (const unsigned twin : {20U, 40U, 77U, 150U, 199U})
                std::copy_n(points.view().row(1), dim, centroids.data() + std::size_t{twin} * dim);
            const auto got = assign(points.view(), centroids);
            CHECK(got.label[1] == 20);
            CHECK(got.distance[1] == 0.0F);
        }
}

TEST_CASE("distances are never negative and exact zeros are zero") {
    const oracle::table<float> points(64, 64, 64, 9, 1000.0);
    const auto got = assign(points.view(), points.memory);
    for (std::size_t i = 0; i < 64; ++i) {
        CHECK(got.label[i] == i);
        CHECK(got.distance[i] == 0.0F);
    }
}

TEST_CASE("a point with NaN gets label 0 and disturbs no other") {
    oracle::table<float> points(20, 64, 64, 9);
    const auto centroids = oracle::normal_values(std::size_t{50} * 64, 6);
    const auto before = assign(points.view(), centroids);
    points.row(4)[60] = std::numeric_limits<float>::quiet_NaN();
    const auto after = assign(points.view(), centroids);
    for (std::size_t i = 0; i < 20; ++i) CHECK(after.label[i] == (i == 4 ? 0 : before.label[i]));
}

} // namespace simd_assign_test
