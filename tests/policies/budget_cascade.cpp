// cascade: shares of the whole by preference, which may only shrink as layers arrive.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_cascade.hpp>

#include "contracts/budget.hpp"

namespace budget_cascade_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

TEST_CASE("cascade and cascade_between keep the promises of a budget") {
    budget_contract<kvtl::cascade>();
    budget_contract<kvtl::cascade_between<2, 1>>();
    budget_contract<kvtl::cascade_between<0, 3>>();
}

TEST_CASE("cascade: cutting back step by step ends where one division would") {
    oracle::generator random(5);
    double all = 0, lanes = 0;
    for (int round = 0; round < 50; ++round) {
        const auto layers = static_cast<std::uint32_t>(1 + random.below(40));
        const kvtl::budget_limits limits{layers, 1, 16, 8, 700};
        const board b = divide<kvtl::cascade>({}, limits, 700, static_cast<std::uint64_t>(round));
        double sum = 0;
        for (const float p : b.preferences) sum += static_cast<double>(p);
        for (std::uint32_t l = 0; l < layers; ++l) {
            const double share = static_cast<double>(b.preferences[l]) / sum * 16.0 * layers;
            const double off = std::fabs(b.keep(l, 0) - share);
            CHECK(off <= 5.0); // each step rounds by less than one, and what was rounded down stays so
            all += off, ++lanes;
        }
    }
    CHECK(all / lanes < 0.6);
}

TEST_CASE("cascade_between: the layers at the ends keep the mean, whatever the others get") {
    const kvtl::budget_limits limits{9, 2, 16, 8, 200};
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const board b = divide<kvtl::cascade_between<2, 1>>({}, limits, 200, seed);
        for (const std::uint32_t l : {0U, 1U, 8U}) CHECK(b.keep(l, 0) == 16);
        double sum = 0;
        for (std::uint32_t l = 2; l < 8; ++l) sum += static_cast<double>(b.preferences[l]);
        for (std::uint32_t l = 2; l < 8; ++l) {
            const double share = static_cast<double>(b.preferences[l]) / sum * 16.0 * 6;
            CHECK(std::fabs(b.keep(l, 1) - share) <= 2.0);
        }
    }
    for (std::uint32_t layers = 1; layers <= 3; ++layers) { // nobody is left to share
        const board b = divide<kvtl::cascade_between<2, 1>>({}, {layers, 1, 16, 8, 200}, 200, layers);
        for (std::uint32_t l = 0; l < layers; ++l) CHECK(b.keep(l, 0) == 16);
    }
}

} // namespace budget_cascade_test
