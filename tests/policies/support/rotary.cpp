// Rotary embeddings against complex numbers in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/rotary.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <complex>
#include <vector>

using kvtl::rope, kvtl::rotation;

TEST_CASE("each pair is a complex number that turns by its frequency times the positions, all heads alike") {
    for (const std::uint32_t dim : {2U, 16U, 80U, 128U})
        for (const std::uint32_t dims : {0U, 2U, dim / 4 * 2, dim + 10})
            for (const bool neighbours : {false, true})
                for (const double positions : {0.0, 1.0, -7.0, 131072.0}) {
                    constexpr std::uint32_t heads = 3;
                    const rope r{.theta = 500000.0, .dims = dims, .neighbours = neighbours};
                    auto x = oracle::normal_values(heads * dim, dim);
                    const auto before = x;
                    rotation(r, dim).turn(x.data(), heads, dim, positions);
                    const std::uint32_t pairs = (dims == 0 ? dim : std::min(dims, dim)) / 2;
                    oracle::largest_error error;
                    for (std::uint32_t h = 0; h < heads; ++h) {
                        std::vector<double> expected(&before[h * dim], &before[h * dim] + dim);
                        for (std::uint32_t i = 0; i < pairs; ++i) {
                            double &a = expected[neighbours ? 2 * i : i],
                                   &b = expected[neighbours ? 2 * i + 1 : i + pairs];
                            const std::complex<double> turned =
                                std::complex(a, b) *
                                std::polar(1.0, positions * std::pow(500000.0, -2.0 * i / (2.0 * pairs)));
                            a = turned.real(), b = turned.imag();
                        }
                        for (std::uint32_t d = 0; d < dim; ++d)
                            error.see(static_cast<double>(x[h * dim + d]) - expected[d]);
                    }
                    CHECK(error.value() < 1e-6);
                }
}

TEST_CASE("turned there and back is where it was, far out as well") {
    const rotation r({.theta = 10000.0}, 64);
    auto x = oracle::normal_values(64, 3);
    const auto before = x;
    r.turn(x.data(), 1, 64, 100000.0);
    CHECK(x != before);
    r.turn(x.data(), 1, 64, -100000.0);
    oracle::largest_error error;
    for (std::size_t d = 0; d < 64; ++d)
        error.see(static_cast<double>(x[d]) - static_cast<double>(before[d]));
    CHECK(error.value() < 1e-6);
}
