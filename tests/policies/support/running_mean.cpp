// The mean of a unit as it grows, against a sum in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/running_mean.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace running_mean_test {

using kvtl::detail::running_sum;

TEST_CASE("the mean is rounded once, however many entries") {
    for (const std::size_t width : {1U, 63U, 64U, 65U, 200U}) {
        CHECK(running_sum::bytes(width) == 4 * width);
        std::vector<float> sum(width + 1, 77.0F); // what was there before does not count
        std::vector<kvtl::f16> half(width);
        std::vector<std::int8_t> codes(width);
        std::vector<double> exact(width);
        for (std::uint32_t i = 0; i < 300; ++i) {
            auto row = oracle::normal_values(width, 1000 + i);
            for (float& x : row) x += 3.0F; // a mean that steps of f16 would stop following
            running_sum::add(sum.data(), i, row.data(), width);
            for (std::size_t d = 0; d < width; ++d) exact[d] += static_cast<double>(row[d]);
        }
        CHECK(sum.back() == 77.0F); // nothing behind bytes()
        running_sum::store(sum.data(), 300, half.data(), width);
        const float scale = running_sum::store(sum.data(), 300, codes.data(), width);
        oracle::largest_error of_half, of_codes;
        for (std::size_t d = 0; d < width; ++d) {
            of_half.see(oracle::value(half[d]) - exact[d] / 300);
            of_codes.see(static_cast<double>(scale) * codes[d] - exact[d] / 300);
        }
        CHECK(of_half.value() < 0.0011);                              // half a step of f16 near 3
        CHECK(of_codes.value() < 0.501 * static_cast<double>(scale)); // half a code
        CHECK(static_cast<double>(scale) == doctest::Approx(3.1 / 127).epsilon(0.1));
    }
}

} // namespace running_mean_test
