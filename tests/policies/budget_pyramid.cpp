// pyramid: less with every layer, in a straight line.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_pyramid.hpp>

#include "contracts/budget.hpp"

namespace budget_pyramid_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

namespace {
} // namespace

TEST_CASE("pyramid and pyramid_with_window keep the promises of a budget") {
    const auto vary = [](auto& c, std::uint32_t layers) { c.beta = static_cast<float>(1 + layers % 30); };
    budget_contract<kvtl::pyramid>(vary);
    budget_contract<kvtl::pyramid_with_window>(vary);
}

TEST_CASE("pyramid: linear in the layer, as published") {
    using state_t = kvtl::pyramid::state;
    const kvtl::budget_limits limits{5, 1, 100, 8, 1000};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state({.beta = 20.0F}, limits, memory);
    const double published[] = {195, 147.5, 100, 52.5, 5}; // from 2 * 100 - 5 down to 100 / 20
    for (std::uint32_t l = 0; l < 5; ++l) CHECK(std::fabs(state.provisional(l, 1000) - published[l]) < 1.0);
    const kvtl::budget_limits more{5, 1, 300, 8, 1000};
    const kvtl::pyramid_with_window::state both({.beta = 20.0F}, more, memory);
    CHECK(std::fabs(both.provisional(0, 1000) - (2 * 308 - 15.4 - 8)) < 1.0);
}

TEST_CASE("pyramid: what a short prompt turns away from the first layers goes to the later ones") {
    const board b = divide<kvtl::pyramid>({}, {5, 1, 100, 8, 1000}, 120, 1);
    CHECK(b.kept() == std::vector<std::uint32_t>{120, 120, 120, 120, 20});
}

TEST_CASE("pyramid: settings that can never work are named") {
    using state_t = kvtl::pyramid::state;
    check_refusal(state_t::check({.beta = 0.9F}, {}), "budget.beta is 0.9");
    check_refusal(state_t::check({.beta = NAN}, {}), "budget.beta is");
}

} // namespace budget_pyramid_test
