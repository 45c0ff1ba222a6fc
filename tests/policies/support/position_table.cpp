// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/position_table.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace position_table_test {

TEST_CASE("turning equals rotation in double precision, both ways, for both pairings and any position") {
    for (const bool neighbours : {false, true})
        for (const std::uint32_t pairs : {1U, 4U, 12U, 32U, 40U, 64U}) {
            CAPTURE(neighbours);
            CAPTURE(pairs);
            std::vector<double> frequency(pairs);
            for (std::uint32_t i = 0; i < pairs; ++i) frequency[i] = std::pow(10000.0, -double(i) / pairs);
            const std::uint32_t most = 70000;
            std::vector<float> memory(kvtl::position_table::bytes(pairs, most) / sizeof(float));
            const kvtl::position_table table(std::as_writable_bytes(std::span(memory)), frequency, most,
                                             neighbours);
            oracle::largest_error error;
            for (const std::uint32_t position : {0U, 1U, 255U, 256U, 4097U, 69999U}) {
                const auto x = oracle::normal_values<float>(2 * pairs + 3, position + pairs);
                std::vector<float> turned = x;
                table.turn(turned.data(), position);
                for (std::uint32_t i = 0; i < pairs; ++i) {
                    const std::uint32_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + pairs;
                    const double angle = position * frequency[i], c = std::cos(angle), s = std::sin(angle);
                    error.see(double(turned[a]) - (double(x[a]) * c - double(x[b]) * s));
                    error.see(double(turned[b]) - (double(x[b]) * c + double(x[a]) * s));
                }
                for (std::size_t i = 2 * pairs; i < x.size(); ++i) CHECK(turned[i] == x[i]); // does not turn
                table.turn_back(turned.data(), position);
                for (std::size_t i = 0; i < x.size(); ++i) error.see(double(turned[i]) - double(x[i]));
            }
            CHECK(error.value() < 2e-6);
        }
}

} // namespace position_table_test
