// The Walsh-Hadamard transform against its definition in double precision, for every block size and row length.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/hadamard.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace simd_hadamard_test {

using namespace kvtl;

TEST_CASE("a row is rotated block by block as the definition has it, and nothing behind it is written") {
    for (const std::size_t dim :
         {1U, 2U, 3U, 4U, 8U, 12U, 24U, 50U, 56U, 64U, 80U, 96U, 120U, 128U, 160U, 256U, 512U}) {
        CAPTURE(dim);
        const std::size_t block = simd::hadamard_block(dim);
        CHECK(dim % block == 0);
        CHECK(dim / block % 2 == 1);
        const auto x = oracle::normal_values<float>(dim, dim);
        std::vector<float> y = x;
        y.push_back(-7.0F);
        simd::hadamard(y.data(), dim);
        CHECK(y.back() == -7.0F);
        oracle::largest_error error;
        for (std::size_t i = 0; i < dim; ++i) {
            double sum = 0;
            for (std::size_t j = 0; j < block; ++j) {
                const bool odd = std::popcount(i % block & j) % 2 == 1;
                sum += (odd ? -1.0 : 1.0) * static_cast<double>(x[i / block * block + j]);
            }
            error.see(static_cast<double>(y[i]) - sum / std::sqrt(static_cast<double>(block)));
        }
        CHECK(error.value() <= 4e-6);
        simd::hadamard(y.data(), dim);
        for (std::size_t i = 0; i < dim; ++i)
            error.see(static_cast<double>(y[i]) - static_cast<double>(x[i]));
        CHECK(error.value() <= 4e-6);
    }
}

} // namespace simd_hadamard_test
