// Squared distances and nearest rows against double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/distance.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_distance_test {

namespace simd = kvtl::simd;

TEST_CASE_TEMPLATE("l2sq over all small sizes and some large", E, float, kvtl::f16, kvtl::bf16) {
    oracle::largest_error worst;
    const auto try_size = [&](std::size_t n) {
        const auto a = oracle::normal_values(n, n + 1);
        const auto b = oracle::normal_values<E>(n, n + 2);
        const double exact = oracle::l2sq(a.data(), b.data(), n);
        worst.relative(static_cast<double>(simd::l2sq(a.data(), b.data(), n)), exact);
    };
    for (std::size_t n = 1; n <= 130; ++n) try_size(n);
    try_size(1000);
    try_size(30011);
    CHECK(worst.value() < 2e-6);
}

TEST_CASE_TEMPLATE("l2sq_rows: any count, dim and stride", E, float, kvtl::f16, kvtl::bf16) {
    oracle::largest_error worst;
    for (const unsigned dim : {1U, 5U, 16U, 31U, 64U, 80U, 96U, 128U, 129U})
        for (const unsigned count : {0U, 1U, 2U, 3U, 5U, 8U, 15U, 16U, 17U, 40U}) {
            const oracle::table<E> rows(count, dim, dim + 9, dim * 100 + count);
            const auto q = oracle::normal_values(dim, 3);
            std::vector<float> out(count + 1, -5.0F);
            simd::l2sq_rows(q.data(), rows.view(), out.data());
            for (std::size_t i = 0; i < count; ++i) {
                const double exact = oracle::l2sq(q.data(), rows.view().row(i), dim);
                worst.relative(static_cast<double>(out[i]), exact);
            }
            CHECK(out[count] == -5.0F);
        }
    CHECK(worst.value() < 2e-6);
}

TEST_CASE_TEMPLATE("l2sq_rows: rows of a long run come in one stream, to the same bits", E, float,
                   kvtl::f16) {
    for (const unsigned dim : {64U, 72U, 300U}) {
        const auto count = static_cast<unsigned>(simd::streamed_bytes / (dim * sizeof(E))) + 21;
        const oracle::table<E> rows(count, dim, dim, 7);
        REQUIRE(simd::streamed(rows.view()));
        const auto q = oracle::normal_values(dim, 8);
        std::vector<float> whole(count), alone(count);
        simd::l2sq_rows(q.data(), rows.view(), whole.data());
        for (std::size_t i = 0; i < count; i += 37)
            simd::l2sq_rows(
                q.data(),
                kvtl::rows_view<E>{rows.view().row(i), std::min<std::size_t>(37, count - i), dim, dim},
                &alone[i]);
        CHECK(whole == alone);
    }
}

TEST_CASE("l2sq_codes: rows of codes with scales of their own, any count, dim and stride") {
    oracle::largest_error worst;
    oracle::generator random(11);
    for (const unsigned dim : {1U, 5U, 16U, 31U, 64U, 80U, 96U, 128U, 129U})
        for (const unsigned count : {0U, 1U, 3U, 4U, 5U, 8U, 17U}) {
            const std::size_t stride = dim + 9;
            std::vector<std::int8_t> codes(count * stride + 1, 99); // what lies between rows does not count
            std::vector<float> scale(count + 1, 77.0F), out(count + 1, -5.0F);
            const auto q = oracle::normal_values(dim, dim + count);
            for (std::size_t i = 0; i < count; ++i) {
                scale[i] = static_cast<float>(0.001 + 0.02 * std::fabs(random.normal()));
                for (std::size_t d = 0; d < dim; ++d)
                    codes[i * stride + d] =
                        static_cast<std::int8_t>(static_cast<int>(random.below(255)) - 127);
            }
            simd::l2sq_codes(q.data(), {codes.data(), count, dim, stride}, scale.data(), out.data());
            for (std::size_t i = 0; i < count; ++i) {
                double exact = 0;
                for (std::size_t d = 0; d < dim; ++d) {
                    const double apart =
                        static_cast<double>(q[d]) - static_cast<double>(scale[i]) * codes[i * stride + d];
                    exact += apart * apart;
                }
                worst.relative(static_cast<double>(out[i]), exact, exact + 1e-3);
            }
            CHECK(out[count] == -5.0F);
        }
    CHECK(worst.value() < 2e-6);
}

TEST_CASE("small distances between large vectors keep their digits") {
    std::vector<float> a(128, 1000.0F), b(128, 1000.0F);
    b[77] = 1000.125F;
    CHECK(simd::l2sq(a.data(), b.data(), 128) == 0.015625F);
    CHECK(simd::l2sq(a.data(), a.data(), 128) == 0.0F);
}

TEST_CASE_TEMPLATE("nearest_row", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned count : {1U, 2U, 16U, 63U, 64U, 65U, 200U, 1000U}) {
        const oracle::table<E> rows(count, 64, 64, count);
        const auto q = oracle::normal_values(64, count + 1);
        const auto got = simd::nearest_row(q.data(), rows.view());
        const auto expected = oracle::nearest(q.data(), rows.view());
        CHECK(got.index == expected.index);
        CHECK(got.distance == doctest::Approx(expected.distance).epsilon(1e-5));
    }
}

TEST_CASE("nearest_row: ties go to the lower index, NaN never wins, nothing gives infinity") {
    oracle::table<float> rows(150, 64, 64, 1);
    const auto q = oracle::normal_values(64, 2);
    for (const unsigned i : {140U, 30U, 97U}) std::copy(q.begin(), q.end(), rows.row(i));
    CHECK(simd::nearest_row(q.data(), rows.view()).index == 30);
    CHECK(simd::nearest_row(q.data(), rows.view()).distance == 0.0F);
    rows.row(30)[5] = std::numeric_limits<float>::quiet_NaN();
    CHECK(simd::nearest_row(q.data(), rows.view()).index == 97);
    const auto none = simd::nearest_row(q.data(), rows.view().slice(0, 0));
    CHECK(none.index == 0);
    CHECK(none.distance == std::numeric_limits<float>::infinity());
}

} // namespace simd_distance_test
