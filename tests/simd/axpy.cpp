// Vector sums: exact to one rounding per element, and no element beyond n.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/axpy.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_axpy_test {

namespace simd = kvtl::simd;

TEST_CASE_TEMPLATE("axpy, add and scale", E, float, kvtl::f16, kvtl::bf16) {
    for (std::size_t n = 0; n <= 130; ++n) {
        const auto x = oracle::normal_values<E>(n, n + 1);
        auto start = oracle::normal_values(n + 1, n + 2);
        start[n] = 42.0F;

        auto y = start;
        simd::axpy(0.37F, x.data(), y.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
            const double term = static_cast<double>(0.37F) * oracle::value(x[i]),
                         old = oracle::value(start[i]);
            CHECK(std::fabs(oracle::value(y[i]) - (term + old)) <=
                  2.5e-7 * (std::fabs(term) + std::fabs(old)));
        }
        CHECK(y[n] == 42.0F);

        y = start;
        simd::add(x.data(), y.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == start[i] + kvtl::to_float(x[i]));
        CHECK(y[n] == 42.0F);

        y = start;
        simd::scale(-1.75F, y.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == -1.75F * start[i]);
        CHECK(y[n] == 42.0F);

        y = start;
        const auto factors = oracle::normal_values(n, n + 3);
        simd::multiply(factors.data(), y.data(), n);
        for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == factors[i] * start[i]);
        CHECK(y[n] == 42.0F);
    }
}

} // namespace simd_axpy_test
