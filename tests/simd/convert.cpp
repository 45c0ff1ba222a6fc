// Bulk conversion and the search for numbers that are none.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/convert.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_convert_test {

namespace simd = kvtl::simd;

TEST_CASE_TEMPLATE("encode and decode agree with the scalar reference at every length", E, float, kvtl::f16,
                   kvtl::bf16) {
    for (std::size_t n = 0; n <= 130; ++n) {
        auto x = oracle::normal_values(n + 1, n, 100.0);
        if (n > 2) x[1] = 3e-7F, x[2] = 1e6F; // a subnormal half, and one that overflows
        std::vector<E> stored(n + 1, kvtl::from_float<E>(9.0F));
        simd::encode(x.data(), stored.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(stored[i] == kvtl::from_float<E>(x[i]));
        CHECK(stored[n] == kvtl::from_float<E>(9.0F));

        std::vector<float> back(n + 1, 9.0F);
        simd::decode(stored.data(), back.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(back[i] == kvtl::to_float(stored[i]));
        CHECK(back[n] == 9.0F);
    }
}

TEST_CASE("all_finite finds one bad number anywhere") {
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t n = 0; n <= 130; ++n) {
        auto x = oracle::normal_values(n + 1, n);
        x[n] = nan; // just behind the end
        CHECK(simd::all_finite(x.data(), n));
        for (std::size_t at = 0; at < n; ++at)
            for (const float bad : {inf, -inf, nan}) {
                const float old = x[at];
                x[at] = bad;
                REQUIRE_FALSE(simd::all_finite(x.data(), n));
                x[at] = old;
            }
    }
    const std::vector<float> extreme(1000, -std::numeric_limits<float>::max());
    CHECK(simd::all_finite(extreme.data(), 1000));
    const std::vector<float> tiny(1000, std::numeric_limits<float>::denorm_min());
    CHECK(simd::all_finite(tiny.data(), 1000));
}

TEST_CASE_TEMPLATE("encode from 16 bits: each number rounded once, the same type copied", From, kvtl::f16,
                   kvtl::bf16) {
    for (std::size_t n = 0; n <= 70; ++n) {
        const auto x = oracle::normal_values(n + 1, n, 100.0);
        std::vector<From> in(n + 1);
        simd::encode(x.data(), in.data(), n);
        std::vector<kvtl::f16> half(n + 1);
        std::vector<kvtl::bf16> brain(n + 1);
        std::vector<float> wide(n + 1);
        simd::encode(kvtl::tensor_view(in), 0, half.data(), n);
        simd::encode(in.data(), brain.data(), n);
        simd::encode(in.data(), wide.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
            CHECK(wide[i] == kvtl::to_float(in[i]));
            CHECK(half[i] == kvtl::from_float<kvtl::f16>(wide[i]));
            CHECK(brain[i] == kvtl::from_float<kvtl::bf16>(wide[i]));
        }
        CHECK(simd::all_finite(in.data(), n));
        if (n > 3) {
            in[n - 2] = kvtl::from_float<From>(std::numeric_limits<float>::infinity());
            CHECK_FALSE(simd::all_finite(in.data(), n));
            simd::encode(kvtl::tensor_view(in), 3, half.data(), n - 3);
            CHECK(half[0] == kvtl::from_float<kvtl::f16>(kvtl::to_float(in[3])));
        }
    }
}

} // namespace simd_convert_test
