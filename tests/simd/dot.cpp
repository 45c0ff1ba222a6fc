// Inner products against double precision: every size around the register widths, padded rows, odd groups.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/dot.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <type_traits>

namespace simd_dot_test {

namespace simd = kvtl::simd;

namespace {

/// |error| in units of what f32 sums may lose: the sum of magnitudes, and a few subnormals.
template <class E> double lost(float got, const float* a, const E* b, std::size_t n) {
    const double scale = oracle::dot_of_magnitudes(a, b, n) + 1e-40;
    return std::fabs(static_cast<double>(got) - oracle::dot(a, b, n)) / scale;
}

constexpr double tolerance = 1e-6;

/// Of dot_rows and dot_group: a query that is cut in two bf16 numbers loses up to 2^-17 of each, on average far less.
template <class E> double rows_tolerance(unsigned dim) {
    const bool cut = simd::has_bf16_products<simd::default_arch> && std::is_same_v<E, kvtl::bf16> &&
                     simd::bf16_products_of(dim);
    return cut ? 4e-6 : tolerance;
}

} // namespace

TEST_CASE_TEMPLATE("dot over all small sizes and some large", E, float, kvtl::f16, kvtl::bf16) {
    oracle::largest_error worst;
    const auto try_size = [&](std::size_t n) {
        const auto a = oracle::normal_values(n, n + 1);
        const auto b = oracle::normal_values<E>(n, n + 2);
        worst.see(lost(simd::dot(a.data(), b.data(), n), a.data(), b.data(), n));
    };
    for (std::size_t n = 1; n <= 130; ++n) try_size(n);
    for (const std::size_t n : {std::size_t{1000}, std::size_t{4096}, std::size_t{100003}}) try_size(n);
    CHECK(worst.value() < tolerance);
    CHECK(simd::dot(static_cast<const float*>(nullptr), static_cast<const E*>(nullptr), 0) == 0.0F);
}

TEST_CASE("sum and weighted_square over all small sizes and some large") {
    oracle::largest_error worst;
    const auto try_size = [&](std::size_t n) {
        const auto a = oracle::normal_values(n, n + 1), weight = oracle::normal_values(n, n + 2);
        double total = 0, magnitudes = 0;
        std::vector<float> squares;
        for (const float x : a) {
            total += static_cast<double>(x), magnitudes += std::fabs(static_cast<double>(x));
            squares.push_back(x * x);
        }
        worst.see((static_cast<double>(simd::sum(a.data(), n)) - total) / (magnitudes + 1e-40));
        worst.see(lost(simd::weighted_square(a.data(), weight.data(), n), squares.data(), weight.data(), n));
    };
    for (std::size_t n = 1; n <= 130; ++n) try_size(n);
    for (const std::size_t n : {std::size_t{1000}, std::size_t{4096}}) try_size(n);
    CHECK(worst.value() < tolerance);
    CHECK(simd::sum(nullptr, 0) == 0.0F);
    CHECK(simd::weighted_square(nullptr, nullptr, 0) == 0.0F);
}

TEST_CASE_TEMPLATE("dot_group: any group, count, dim and stride", E, float, kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {1U, 3U, 15U, 16U, 17U, 33U, 64U, 80U, 96U, 100U, 128U, 130U, 256U, 257U}) {
        oracle::largest_error worst;
        for (const unsigned count : {0U, 1U, 2U, 3U, 4U, 5U, 7U, 8U, 9U, 15U, 16U, 17U, 33U, 70U})
            for (const unsigned group : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 12U}) {
                const oracle::table<E> rows(count, dim, dim + 5, dim + count);
                oracle::table<float> q(group, dim, dim + 3, group);
                const std::size_t out_stride = count + 2;
                std::vector<float> out(group * out_stride, -5.0F);
                simd::dot_group(q.memory.data(), group, q.stride, rows.view(), out.data(), out_stride);
                for (std::size_t g = 0; g < group; ++g) {
                    for (std::size_t i = 0; i < count; ++i)
                        worst.see(lost(out[g * out_stride + i], q.row(g), rows.view().row(i), dim));
                    REQUIRE(out[g * out_stride + count] == -5.0F); // nothing behind the last row is written
                }
            }
        CHECK(worst.value() < rows_tolerance<E>(dim)); // paddings are NaN: reading one is seen
    }
}

TEST_CASE_TEMPLATE("dot_rows equals the group of one, and a row's bits do not depend on its place", E, float,
                   kvtl::f16, kvtl::bf16) {
    for (const unsigned dim : {40U, 64U, 72U, 128U, 250U, 300U}) {
        const oracle::table<E> rows(100, dim, dim, 5);
        const auto q = oracle::normal_values(dim, 6);
        std::vector<float> all(100), one(100), part(100);
        simd::dot_rows(q.data(), rows.view(), all.data());
        simd::dot_group(q.data(), 1, dim, rows.view(), one.data(), 100);
        CHECK(all == one);
        for (const std::size_t cut : {std::size_t{1}, std::size_t{7}, std::size_t{50}, std::size_t{99}}) {
            simd::dot_rows(q.data(), rows.view().slice(0, cut), part.data());
            simd::dot_rows(q.data(), rows.view().slice(cut, 100 - cut), part.data() + cut);
            CHECK(part == all);
        }
        std::vector<float> thrice(3 * dim), grouped(300);
        for (std::size_t g = 0; g < 3; ++g)
            std::copy(q.begin(), q.end(), thrice.begin() + static_cast<std::ptrdiff_t>(g * dim));
        simd::dot_group(thrice.data(), 3, dim, rows.view(), grouped.data(), 100);
        for (std::size_t g = 0; g < 3; ++g)
            CHECK(std::equal(all.begin(), all.end(), grouped.begin() + static_cast<std::ptrdiff_t>(g * 100)));
    }
}

TEST_CASE_TEMPLATE("dot_rows: rows of a long run are asked for ahead, to the same bits", E, float, kvtl::f16,
                   kvtl::bf16) {
    for (const unsigned dim : {64U, 72U, 128U, 300U}) {
        const auto count = static_cast<unsigned>(simd::streamed_bytes / (dim * sizeof(E))) + 21;
        const oracle::table<E> rows(count, dim, dim, 7);
        const kvtl::rows_view<E> all = rows.view();
        REQUIRE(simd::streamed(all));
        const auto q = oracle::normal_values(dim, 8);
        std::vector<float> whole(count), pieces(count), alone(count);
        simd::dot_rows(q.data(), all, whole.data());
        for (std::size_t i = 0; i < count; i += 37) { // in the run, then as if nothing were behind them
            const auto piece = all.slice(i, std::min<std::size_t>(37, count - i));
            simd::dot_rows(q.data(), piece, &pieces[i]);
            simd::dot_rows(q.data(), kvtl::rows_view<E>{piece.data, piece.count, dim, dim}, &alone[i]);
        }
        CHECK(whole == alone);
        CHECK(pieces == alone);
        for (std::size_t i = 0; i < count; i += 997)
            CHECK(lost(whole[i], q.data(), all.row(i), dim) < rows_tolerance<E>(dim));
    }
}

TEST_CASE("dot: subnormal and huge numbers") {
    std::vector<float> a(100, 1e-41F), ones(100, 1.0F), big(100, 1e18F);
    CHECK(simd::dot(a.data(), ones.data(), 100) == doctest::Approx(1e-39).epsilon(1e-4));
    CHECK(simd::dot(big.data(), big.data(), 100) == doctest::Approx(1e38).epsilon(1e-6));
    const std::vector<kvtl::f16> tiny(100, kvtl::f16{1}); // the smallest subnormal half, 2^-24
    CHECK(simd::dot(ones.data(), tiny.data(), 100) == 100 * 0x1p-24F);
}

TEST_CASE("dot_group over bf16 rows: the ways with and without the processor's instruction") {
    // Subnormal numbers may count as zero, everything else has the precision that is promised.
    for (const unsigned dim : {5U, 31U, 32U, 48U, 64U, 80U, 96U, 128U, 256U}) {
        const unsigned count = 37, group = 11;
        const oracle::table<kvtl::bf16> rows(count, dim, dim + 1, dim);
        oracle::table<float> q(group, dim, dim + 2, 8);
        std::vector<float> best(group * count), plain(group * count);
        simd::dot_group(q.memory.data(), group, q.stride, rows.view(), best.data(), count);
        simd::tile_group<simd::default_arch, simd::product>(q.memory.data(), group, q.stride, rows.view(),
                                                            plain.data(), count);
        oracle::largest_error worst, of_plain;
        for (std::size_t g = 0; g < group; ++g)
            for (std::size_t i = 0; i < count; ++i) {
                worst.see(lost(best[g * count + i], q.row(g), rows.view().row(i), dim));
                of_plain.see(lost(plain[g * count + i], q.row(g), rows.view().row(i), dim));
            }
        CHECK(worst.value() < rows_tolerance<kvtl::bf16>(dim));
        CHECK(of_plain.value() < tolerance);
    }
    const std::vector<kvtl::bf16> tiny(64, kvtl::bf16{1}), least(64, kvtl::bf16{0x80}); // subnormal, 2^-126
    const std::vector<float> ones(64, 1.0F), large(64, 3e38F);
    float out = -1;
    simd::dot_rows(ones.data(), kvtl::rows_view<kvtl::bf16>{tiny.data(), 1, 64, 64}, &out);
    CHECK((out == 0.0F || out == 64 * 0x1p-133F));
    simd::dot_rows(ones.data(), kvtl::rows_view<kvtl::bf16>{least.data(), 1, 64, 64}, &out);
    CHECK(out == 64 * 0x1p-126F);
    simd::dot_rows(large.data(), kvtl::rows_view<kvtl::bf16>{least.data(), 1, 64, 64}, &out);
    CHECK(out == doctest::Approx(64 * 3e38 * 0x1p-126).epsilon(4e-6));
}

TEST_CASE("dot: a narrower architecture gives the same numbers") {
    // Kernels take the architecture as a parameter; the smallest one of the machine is always there too.
#if defined(__SSE2__)
    using narrow = xsimd::sse2;
#else
    using narrow = simd::default_arch;
#endif
    const oracle::table<kvtl::bf16> rows(20, 96, 96, 3);
    const auto q = oracle::normal_values(96, 4);
    std::vector<float> wide_out(20), narrow_out(20);
    simd::dot_rows(q.data(), rows.view(), wide_out.data());
    simd::dot_rows<narrow>(q.data(), rows.view(), narrow_out.data());
    for (std::size_t i = 0; i < 20; ++i) CHECK(narrow_out[i] == doctest::Approx(wide_out[i]).epsilon(1e-4));
}

} // namespace simd_dot_test
