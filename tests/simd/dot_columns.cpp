// Products with rows in column blocks against double precision, and that nothing but their place differs.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/dot_columns.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace simd_dot_columns_test {

namespace simd = kvtl::simd;

namespace {

/// (count, width) rows in blocks of 16; the rows that fill up the last block are NaN.
template <class E> std::vector<E> blocked(const std::vector<E>& rows, std::size_t count, std::size_t width) {
    const std::size_t whole = (count + 15) / 16 * 16;
    std::vector<E> out(whole * width, kvtl::from_float<E>(std::numeric_limits<float>::quiet_NaN()));
    for (std::size_t r = 0; r < count; ++r)
        for (std::size_t c = 0; c < width; ++c)
            out[r / 16 * 16 * width + c * 16 + r % 16] = rows[r * width + c];
    return out;
}

template <class Arch, class E>
void check(std::size_t count, std::size_t width, std::size_t first, std::size_t columns, std::size_t group,
           double& worst) {
    const auto rows = oracle::normal_values<E>(count * width, count + width);
    const auto blocks = blocked(rows, count, width);
    const std::size_t q_stride = columns + 3, out_stride = count + 2;
    const auto q = oracle::normal_values(group * q_stride, group);
    std::vector<float> out(group * out_stride, -5.0F);
    simd::dot_columns<Arch>(q.data(), group, q_stride,
                            simd::columns_view<E>{blocks.data(), count, width, first, columns}, out.data(),
                            out_stride);
    for (std::size_t g = 0; g < group; ++g) {
        for (std::size_t r = 0; r < count; ++r) {
            const float* a = &q[g * q_stride];
            const E* b = &rows[r * width + first];
            const double scale = oracle::dot_of_magnitudes(a, b, columns) + 1e-40;
            const double off =
                std::fabs(static_cast<double>(out[g * out_stride + r]) - oracle::dot(a, b, columns));
            worst = std::max(worst, std::isfinite(off) ? off / scale : 1.0);
        }
        REQUIRE(out[g * out_stride + count] == -5.0F); // nothing behind the last row is written
    }
}

} // namespace

TEST_CASE_TEMPLATE("dot_columns: any count, width, range of columns and group", E, float, kvtl::f16,
                   kvtl::bf16) {
    double worst = 0;
    for (const std::size_t count : {1U, 3U, 15U, 16U, 17U, 31U, 32U, 33U, 63U, 64U, 65U, 130U})
        for (const std::size_t width : {1U, 8U, 13U, 32U, 70U})
            for (const std::size_t group : {1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U})
                for (const std::size_t first : {std::size_t{0}, width / 3}) {
                    check<simd::default_arch, E>(count, width, first, width - first, group, worst);
                    check<simd::default_arch, E>(count, width, first, (width - first + 1) / 2, group, worst);
                }
    CHECK(worst < 1e-6);
}

TEST_CASE("dot_columns: a run that is read block by block has the bits of its parts") {
    const std::size_t width = 32, count = simd::streamed_bytes / width / sizeof(kvtl::f16) + 21;
    const auto blocks = blocked(oracle::normal_values<kvtl::f16>(count * width, 6), count, width);
    const auto q = oracle::normal_values(width, 7);
    const auto score = [&](std::size_t first, std::size_t n, float* out) {
        simd::dot_columns(q.data(), 1, width,
                          simd::columns_view<kvtl::f16>{blocks.data() + first * width, n, width, 0, width},
                          out, n);
    };
    std::vector<float> whole(count), parts(count);
    score(0, count, whole.data());
    const std::size_t half = count / 32 * 16;
    score(0, half, parts.data()), score(half, count - half, parts.data() + half);
    CHECK(std::memcmp(whole.data(), parts.data(), count * sizeof(float)) == 0);
}

TEST_CASE("dot_columns: a narrower architecture gives the same numbers") {
#if defined(__SSE2__)
    double worst = 0;
    for (const std::size_t group : {1U, 2U, 3U, 5U})
        check<xsimd::sse2, kvtl::f16>(37, 32, 2, 30, group, worst);
    CHECK(worst < 1e-6);
#endif
    double none = 0;
    check<simd::default_arch, float>(0, 4, 0, 4, 2, none); // no rows: nothing is read or written
    CHECK(none == 0);
}

TEST_CASE("a row's bits do not depend on its place or on the group") {
    const std::size_t width = 24, count = 80;
    const auto rows = oracle::normal_values<kvtl::f16>(count * width, 1);
    auto twice = rows; // row r + 40 is row r
    for (std::size_t i = 0; i < 40 * width; ++i) twice[40 * width + i] = twice[i];
    const auto blocks = blocked(twice, count, width);
    const auto one = oracle::normal_values(width, 2);
    std::vector<float> q(7 * width), out(7 * count);
    for (std::size_t g = 0; g < 7; ++g)
        std::copy(one.begin(), one.end(), q.begin() + static_cast<std::ptrdiff_t>(g * width));
    simd::dot_columns(q.data(), 7, width,
                      simd::columns_view<kvtl::f16>{blocks.data(), count, width, 0, width}, out.data(),
                      count);
    for (std::size_t g = 0; g < 7; ++g)
        for (std::size_t r = 0; r < 40; ++r) {
            REQUIRE(out[g * count + r] == out[r]);
            REQUIRE(out[g * count + r + 40] == out[r]);
        }
}

} // namespace simd_dot_columns_test
