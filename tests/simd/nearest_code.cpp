// The nearest row of codes: the one that all distances, and double precision, would name.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/nearest_code.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace simd_nearest_code_test {

namespace simd = kvtl::simd;

namespace {

struct coded_rows {
    std::size_t count, dim, stride;
    std::vector<std::int8_t> code;
    std::vector<float> scale;

    coded_rows(std::size_t n, std::size_t d, std::size_t seed)
        : count(n), dim(d), stride(d + 9), code(n * stride + 1, 99), scale(n + 1, 77.0F) {
        oracle::generator random(seed);
        for (std::size_t i = 0; i < n; ++i) {
            scale[i] = static_cast<float>(0.001 + 0.02 * std::fabs(random.normal()));
            for (std::size_t j = 0; j < d; ++j)
                code[i * stride + j] = static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127);
        }
    }
    [[nodiscard]] kvtl::rows_view<std::int8_t> view() const { return {code.data(), count, dim, stride}; }
    [[nodiscard]] double distance(const float* q, std::size_t i) const {
        double sum = 0;
        for (std::size_t j = 0; j < dim; ++j) {
            const double apart =
                static_cast<double>(q[j]) - static_cast<double>(scale[i]) * code[i * stride + j];
            sum += apart * apart;
        }
        return sum;
    }
};

/// The same bits as a search through l2sq_codes().
void compare(const std::vector<float>& q, const coded_rows& rows) {
    std::vector<float> all(rows.count + 1, -5.0F), bound(rows.count + 1, -5.0F);
    simd::l2sq_codes(q.data(), rows.view(), rows.scale.data(), all.data());
    const simd::neighbour expected = simd::first_least(all.data(), rows.count);
    const simd::neighbour got = simd::nearest_code(q.data(), rows.view(), rows.scale.data(), bound.data());
    CAPTURE(rows.count);
    CAPTURE(rows.dim);
    CHECK(got.index == expected.index);
    CHECK(std::memcmp(&got.distance, &expected.distance, sizeof(float)) == 0);
    CHECK(bound.back() == -5.0F);
    if (rows.count == 0 || !std::isfinite(got.distance)) return;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < rows.count; ++i) least = std::min(least, rows.distance(q.data(), i));
    CHECK(rows.distance(q.data(), got.index) <= least * (1 + 1e-5) + 1e-12);
}

} // namespace

TEST_CASE("any count, dim and stride, queries near to a row and far from all") {
    std::size_t seed = 1;
    oracle::generator random(5);
    for (const unsigned dim : {1U, 5U, 16U, 31U, 32U, 64U, 80U, 96U, 128U, 129U, 512U, 513U})
        for (const unsigned count : {0U, 1U, 4U, 15U, 16U, 17U, 31U, 40U, 333U}) {
            const coded_rows rows(count, dim, ++seed);
            for (const double size : {1e-3, 1.0, 100.0})
                compare(oracle::normal_values(dim, ++seed, size), rows);
            if (count == 0) continue;
            std::vector<float> q(dim);
            const std::size_t of = random.below(count);
            for (std::size_t j = 0; j < dim; ++j)
                q[j] =
                    rows.scale[of] * (rows.code[of * rows.stride + j] + static_cast<float>(random.normal()));
            compare(q, rows);
        }
}

TEST_CASE("rows that are hardly apart, or not at all: the first of the nearest") {
    for (const unsigned dim : {8U, 64U, 100U}) {
        coded_rows rows(200, dim, dim);
        for (std::size_t i = 1; i < rows.count; ++i) { // all the same but for a code here and there
            std::memcpy(&rows.code[i * rows.stride], rows.code.data(), dim);
            rows.scale[i] = rows.scale[0];
            if (i % 3 == 0) rows.code[i * rows.stride + i % dim] ^= 1;
            if (i % 7 == 0) rows.scale[i] = std::nextafter(rows.scale[i], 1.0F);
        }
        for (unsigned seed = 1; seed < 40; ++seed) compare(oracle::normal_values(dim, seed), rows);
        std::vector<float> q(dim);
        for (std::size_t j = 0; j < dim; ++j) q[j] = rows.scale[0] * rows.code[j];
        compare(q, rows);
    }
}

TEST_CASE("two rows that are apart by less than a query of 16 bits shows") {
    oracle::generator random(3);
    for (std::size_t seed = 1; seed < 200; ++seed) {
        coded_rows rows(64, 64, seed);
        const std::size_t first = random.below(16), second = 32 + random.below(16), at = random.below(64);
        std::int8_t *a = &rows.code[first * rows.stride], *b = &rows.code[second * rows.stride];
        a[at] = static_cast<std::int8_t>(std::min<int>(a[at], 100));
        std::memcpy(b, a, 64);
        b[at] = static_cast<std::int8_t>(a[at] + 1);
        rows.scale[first] = rows.scale[second] = 0.01F;
        std::vector<float> q(64);
        for (std::size_t j = 0; j < 64; ++j) q[j] = 0.01F * (static_cast<float>(a[j]) + 0.1F);
        q[at] = 0.01F * (static_cast<float>(a[at]) + 0.5F) + static_cast<float>(1e-6 * random.normal());
        compare(q, rows);
    }
}

TEST_CASE(
    "queries that 16 bits do not hold: zeros, the smallest numbers, the largest, and what is no number") {
    const coded_rows rows(50, 64, 9);
    compare(std::vector<float>(64, 0.0F), rows);
    compare(std::vector<float>(64, std::numeric_limits<float>::denorm_min()), rows);
    for (const float x : {1e-36F, 3e37F, std::numeric_limits<float>::infinity()}) {
        auto q = oracle::normal_values(64, 3);
        q[7] = x;
        compare(q, rows);
    }
    auto q = oracle::normal_values(64, 4);
    q[7] = std::numeric_limits<float>::quiet_NaN();
    compare(q, rows);
    coded_rows zeros(50, 64, 10);
    std::fill(zeros.scale.begin(), zeros.scale.end() - 1, 0.0F);
    compare(oracle::normal_values(64, 11), zeros);
}

} // namespace simd_nearest_code_test
