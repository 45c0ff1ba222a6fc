// keep_largest_magnitudes against a stable sort.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/largest_magnitudes.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace largest_magnitudes_test {

TEST_CASE("all but the largest magnitudes become zero, ties to the lower index") {
    oracle::generator random(4);
    for (int round = 0; round < 500; ++round) {
        std::vector<float> x(random.below(90)), magnitude;
        const std::size_t levels = 1 + random.below(30);
        for (float& y : x) {
            y = static_cast<float>(random.below(levels)) * (random.below(2) == 0 ? -1.0F : 1.0F);
            magnitude.push_back(std::fabs(y));
        }
        const std::size_t keep = random.below(x.size() + 3);
        std::vector<float> expected(x.size(), 0.0F), scratch(x.size() + 4, 77.0F);
        for (const std::uint32_t i : oracle::top_k(magnitude.data(), x.size(), keep)) expected[i] = x[i];
        kvtl::detail::keep_largest_magnitudes(x, keep, std::span(scratch).first(x.size()));
        CHECK(x == expected);
        CHECK(std::vector<float>(scratch.end() - 4, scratch.end()) == std::vector<float>(4, 77.0F));
    }
}

} // namespace largest_magnitudes_test
