// The register vocabulary: conversions against element.hpp over (nearly) all bit patterns, exp against
// double, and partial loads and stores that must not touch a neighbour.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/arch.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace simd_arch_test {

namespace simd = kvtl::simd;
using arch = simd::default_arch;
constexpr std::size_t lane_count = simd::floats_per_register<arch>;
constexpr float inf = std::numeric_limits<float>::infinity();

namespace {

/// The same bits; or NaN of the same sign: hardware quiets NaN, and may keep or drop the payload.
template <class E> bool same(E a, E b) {
    if constexpr (sizeof(E) == 4) {
        if (std::isnan(a) && std::isnan(b)) return std::signbit(a) == std::signbit(b);
        return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    } else {
        const float x = kvtl::to_float(a), y = kvtl::to_float(b);
        return (std::isnan(x) && std::isnan(y)) ? std::signbit(x) == std::signbit(y) : a == b;
    }
}

} // namespace

TEST_CASE_TEMPLATE("every 16-bit pattern widens as the scalar reference says", E, kvtl::f16, kvtl::bf16) {
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < 65536; bits += lane_count) {
        E in[lane_count];
        float out[lane_count];
        for (std::uint32_t i = 0; i < lane_count; ++i) in[i].bits = static_cast<std::uint16_t>(bits + i);
        simd::store<arch>(out, simd::load<arch>(in));
        for (std::size_t i = 0; i < lane_count; ++i) wrong += !same(out[i], kvtl::to_float(in[i]));
    }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("floats are rounded as the scalar reference says", E, kvtl::f16, kvtl::bf16) {
    // 1009 is prime: the sweep meets every exponent, ties, subnormals, overflow and NaN.
    int wrong = 0;
    for (std::uint64_t bits = 0; bits < (1ULL << 32); bits += 1009 * lane_count) {
        float in[lane_count];
        E out[lane_count];
        for (std::size_t i = 0; i < lane_count; ++i)
            in[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits + 1009 * i));
        simd::store<arch>(out, simd::load<arch>(in));
        for (std::size_t i = 0; i < lane_count; ++i) wrong += !same(out[i], kvtl::from_float<E>(in[i]));
    }
    CHECK(wrong == 0);

    // Half-way cases and the edges of the ranges, which a sweep may miss.
    for (std::uint32_t upper = 0; upper < 65536; ++upper)
        for (const std::uint32_t lower :
             {0U, 1U, 0x0FFFU, 0x1000U, 0x1001U, 0x7FFFU, 0x8000U, 0x8001U, 0xF000U, 0xFFFFU}) {
            float in[lane_count];
            E out[lane_count];
            for (float& x : in) x = std::bit_cast<float>(upper << 16 | lower);
            simd::store<arch>(out, simd::load<arch>(in));
            wrong += !same(out[lane_count - 1], kvtl::from_float<E>(in[0]));
        }
    CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("partial loads fill with zero, partial stores leave neighbours alone", E, float, kvtl::f16,
                   kvtl::bf16) {
    for (std::size_t n = 0; n <= lane_count; ++n) {
        // Heap blocks of exactly n elements: an address sanitizer sees any step beyond.
        const std::vector<E> in = oracle::normal_values<E>(n, 11 + n);
        float out[lane_count];
        simd::store<arch>(out, simd::load_part<arch>(in.data(), n));
        for (std::size_t i = 0; i < lane_count; ++i) CHECK(out[i] == (i < n ? kvtl::to_float(in[i]) : 0.0F));

        const E mark = kvtl::from_float<E>(77.0F);
        std::vector<E> target(n + 1, mark);
        simd::store_part<arch>(target.data(), simd::load_part<arch>(in.data(), n), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(target[i] == in[i]);
        CHECK(target[n] == mark);
    }
}

TEST_CASE("a partial load may fill with another number") {
    std::vector<float> numbers(lane_count);
    for (std::size_t n = 0; n <= lane_count;
         ++n) { // an array of just n: reading on is seen by the sanitizers
        for (std::size_t i = 0; i < n; ++i) numbers[i] = static_cast<float>(i) + 1;
        const std::vector<float> some(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(n));
        float all[lane_count];
        simd::store<arch>(all, simd::load_part<arch>(some.data(), n, -inf));
        for (std::size_t i = 0; i < lane_count; ++i) CHECK(all[i] == (i < n ? numbers[i] : -inf));
    }
}

TEST_CASE("a register is stored as rows, and nothing between them is touched") {
    float numbers[lane_count];
    for (std::size_t i = 0; i < lane_count; ++i) numbers[i] = static_cast<float>(i) + 1;
    const auto x = simd::load<arch>(numbers);
    const auto of = [&](auto rows) {
        constexpr std::size_t R = decltype(rows)::value, stride = R + 3;
        std::vector<float> out(lane_count / R * stride, -5.0F);
        simd::store_rows<arch, R>(out.data(), stride, x);
        for (std::size_t i = 0; i < out.size(); ++i)
            CHECK(out[i] == (i % stride < R ? numbers[i / stride * R + i % stride] : -5.0F));
    };
    of(std::integral_constant<std::size_t, 1>{});
    of(std::integral_constant<std::size_t, 2>{});
    of(std::integral_constant<std::size_t, 4>{});
    of(std::integral_constant<std::size_t, lane_count>{});
}

TEST_CASE("reductions") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const std::vector<float> x = oracle::normal_values(lane_count * lane_count, seed);
        simd::floats<arch> rows[lane_count];
        float sums[lane_count];
        for (std::size_t r = 0; r < lane_count; ++r) rows[r] = simd::load<arch>(x.data() + r * lane_count);
        simd::store<arch>(sums, simd::reduce_add_each<arch>(rows));
        for (std::size_t r = 0; r < lane_count; ++r) {
            double sum = 0;
            float largest = -inf;
            for (std::size_t i = 0; i < lane_count; ++i) {
                sum += oracle::value(x[r * lane_count + i]);
                largest = std::max(largest, x[r * lane_count + i]);
            }
            CHECK(sums[r] == doctest::Approx(sum).epsilon(1e-5));
            CHECK(simd::reduce_add<arch>(rows[r]) == doctest::Approx(sum).epsilon(1e-5));
            CHECK(simd::reduce_max<arch>(rows[r]) == largest);
        }
        // The place of a register does not change its sum.
        for (std::size_t r = 1; r < lane_count; ++r) rows[r] = rows[0];
        simd::store<arch>(sums, simd::reduce_add_each<arch>(rows));
        for (std::size_t r = 1; r < lane_count; ++r) CHECK(sums[r] == sums[0]);
    }
    CHECK(simd::reduce_max<arch>(simd::floats<arch>(-inf)) == -inf);
}

TEST_CASE("the largest lane is found wherever it is") {
    for (std::size_t at = 0; at < lane_count; ++at) {
        float x[lane_count];
        for (std::size_t i = 0; i < lane_count; ++i) x[i] = i == at ? -1.0F : -2.0F - static_cast<float>(i);
        CHECK(simd::reduce_max<arch>(simd::load<arch>(x)) == -1.0F);
    }
}

TEST_CASE("fma multiplies, then adds") {
    const simd::floats<arch> x(3.0F), y(5.0F), z(7.0F);
    CHECK(simd::reduce_max<arch>(simd::fma<arch>(x, y, z)) == 22.0F);
    CHECK(simd::reduce_max<arch>(simd::keep<arch>(x)) == 3.0F);
}

TEST_CASE("exp is good to two units in the last place, and 0 below the least normal number") {
    oracle::largest_error worst;
    for (double x = -104.5; x < 88.8; x += 0.0007) {
        float in[lane_count], out[lane_count];
        for (std::size_t i = 0; i < lane_count; ++i) in[i] = static_cast<float>(x);
        simd::store<arch>(out, simd::exp<arch>(simd::load<arch>(in)));
        const double exact = std::exp(static_cast<double>(in[0]));
        const auto rounded = static_cast<float>(exact);
        CHECK((out[0] == 0.0F || out[0] >= std::numeric_limits<float>::min()));
        if (in[0] < -87.33F) {
            CHECK(out[0] == 0.0F);
            continue;
        }
        if (std::isinf(rounded)) {
            CHECK(out[0] == inf);
            continue;
        }
        const double unit = static_cast<double>(std::nextafter(rounded, inf) - rounded);
        worst.relative(static_cast<double>(out[lane_count - 1]), exact, unit);
    }
    CHECK(worst.value() <= 2.0);

    const auto at = [](float x) { return simd::reduce_max<arch>(simd::exp<arch>(simd::floats<arch>(x))); };
    CHECK(at(-inf) == 0.0F);
    CHECK(at(-1e30F) == 0.0F);
    CHECK(at(-200.0F) == 0.0F);
    CHECK(at(-100.0F) == 0.0F);
    CHECK(at(-87.33F) >= std::numeric_limits<float>::min());
    CHECK(at(0.0F) == 1.0F);
    CHECK(at(-0.0F) == 1.0F);
    CHECK(at(89.0F) == inf);
    CHECK(at(1e30F) == inf);
    CHECK(at(inf) == inf);
    CHECK(std::isnan(at(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("log is good to two units in the last place, and -inf for 0") {
    oracle::largest_error worst;
    const auto check = [&](float x) {
        float in[lane_count], out[lane_count];
        for (float& lane : in) lane = x;
        simd::store<arch>(out, simd::log<arch>(simd::load<arch>(in)));
        const double exact = std::log(static_cast<double>(x));
        const float rounded = std::fabs(static_cast<float>(exact));
        const double unit = static_cast<double>(std::nextafter(rounded, inf) - rounded);
        worst.relative(static_cast<double>(out[lane_count - 1]), exact, unit);
    };
    for (float x = 1e-37F; x < 3e38F; x *= 1.0007F) check(x);
    for (float x = 0.5F; x < 2.0F; x += 0.00013F)
        if (x != 1.0F) check(x);
    CHECK(worst.value() <= 2.0);

    const auto at = [](float x) { return simd::reduce_max<arch>(simd::log<arch>(simd::floats<arch>(x))); };
    CHECK(at(1.0F) == 0.0F);
    CHECK(at(0.0F) == -inf);
    for (std::uint32_t n = 1; n < 5000; ++n)
        CHECK(at(static_cast<float>(n)) == doctest::Approx(std::log(static_cast<double>(n))).epsilon(3e-7));
}

} // namespace simd_arch_test
