// One cluster in two: blobs that must be told apart, and what two sides must always satisfy.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/halve.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace halve_test {

namespace {

template <class E>
std::vector<std::uint8_t> halves(kvtl::rows_view<E> points, std::size_t max_side = SIZE_MAX) {
    std::vector<std::uint8_t> side(points.count, 9);
    std::vector<std::byte> scratch(kvtl::halve_scratch_bytes(points.count, points.dim), std::byte{0x7F});
    const std::size_t ones = max_side == SIZE_MAX ? kvtl::halve(points, scratch, side.data())
                                                  : kvtl::halve(points, max_side, scratch, side.data());
    std::size_t count = 0;
    for (const std::uint8_t s : side) {
        REQUIRE(s <= 1);
        count += s;
    }
    CHECK(count == ones);
    return side;
}

/// Sum of squared distances of the points to the mean of their side, in double precision.
template <class E> double inertia_of(kvtl::rows_view<E> points, const std::vector<std::uint8_t>& side) {
    double inertia = 0;
    for (const int one : {0, 1})
        for (std::size_t d = 0; d < points.dim; ++d) {
            double count = 0, mean = 0, m2 = 0;
            for (std::size_t i = 0; i < points.count; ++i) {
                if (side[i] != one) continue;
                const double apart = oracle::value(points.row(i)[d]) - mean;
                mean += apart / ++count;
                m2 += apart * (oracle::value(points.row(i)[d]) - mean);
            }
            inertia += m2;
        }
    return inertia;
}

} // namespace

TEST_CASE_TEMPLATE("two blobs are told apart, whatever the order of the rows", E, float, kvtl::f16,
                   kvtl::bf16) {
    for (const std::size_t n : {4U, 5U, 17U, 64U, 200U})
        for (const std::size_t dim : {1U, 10U, 64U, 100U, 128U}) {
            oracle::table<E> points(n, dim, dim + 1, n + dim, 0.3);
            const std::size_t odd = n / 4; // rows of the second blob; both lie far from the origin
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t d = 0; d < dim; ++d)
                    points.row(i)[d] =
                        kvtl::from_float<E>(kvtl::to_float(points.row(i)[d]) + 20.0F + (i < odd ? 3.0F : 0));
            const auto side = halves(points.view());
            for (std::size_t i = 0; i < n; ++i) CHECK((side[i] == side[0]) == (i < odd));

            oracle::generator random(n); // shuffled
            for (std::size_t i = n - 1; i > 0; --i)
                std::swap_ranges(points.row(i), points.row(i) + dim, points.row(random.below(i + 1)));
            const auto again = halves(points.view());
            CHECK(static_cast<std::size_t>(std::min(std::count(again.begin(), again.end(), 0),
                                                    std::count(again.begin(), again.end(), 1))) ==
                  std::min(odd, n - odd));
        }
}

TEST_CASE("a shapeless set: the cut does not depend on the order, and lowers the inertia") {
    const std::size_t n = 90, dim = 64;
    const oracle::table<kvtl::f16> points(n, dim, dim, 4);
    const auto side = halves(points.view());
    oracle::generator random(1);
    double worst_random = 1e30;
    for (int i = 0; i < 20; ++i) {
        std::vector<std::uint8_t> label(n);
        for (auto& l : label) l = static_cast<std::uint8_t>(random.below(2));
        worst_random = std::min(worst_random, inertia_of(points.view(), label));
    }
    CHECK(inertia_of(points.view(), side) < 0.98 * worst_random);

    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = n - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    oracle::table<kvtl::f16> shuffled(n, dim, dim, 4);
    for (std::size_t i = 0; i < n; ++i) std::copy_n(points.view().row(order[i]), dim, shuffled.row(i));
    const auto again = halves(shuffled.view());
    for (std::size_t i = 0; i < n; ++i) CHECK((again[i] == again[0]) == (side[order[i]] == side[order[0]]));
}

TEST_CASE("both sides have a point, also when all are equal or hardly differ") {
    for (const std::size_t n : {2U, 3U, 4U, 51U}) {
        oracle::table<float> points(n, 8, 8, 1);
        for (const float scale : {0.0F, 1e-30F, 1e-10F, 1.0F, 1e15F}) {
            oracle::generator random(n);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t d = 0; d < 8; ++d)
                    points.row(i)[d] = scale * static_cast<float>(random.below(3)) + 1e-35F;
            const auto side = halves(points.view());
            const auto ones = std::count(side.begin(), side.end(), 1);
            CHECK(ones >= 1);
            CHECK(ones < static_cast<std::ptrdiff_t>(n));
        }
    }
}

TEST_CASE("a side over the limit makes the cut even, still across the spread") {
    oracle::table<float> points(40, 6, 6, 2, 0.1);
    points.row(11)[3] = 50.0F; // 2-means would cut off this one
    const auto free = halves(points.view());
    CHECK(std::min(std::count(free.begin(), free.end(), 0), std::count(free.begin(), free.end(), 1)) == 1);
    const auto even = halves(points.view(), 32);
    CHECK(std::count(even.begin(), even.end(), 1) == 20);
}

} // namespace halve_test
