// head_adaptive: the heads of a layer share by how many of its best scores are theirs.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_pyramid.hpp>

#include "contracts/budget.hpp"

namespace budget_head_adaptive_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

namespace {
} // namespace

TEST_CASE("head_adaptive keeps the promises of a budget, whatever says what a layer gets") {
    const auto vary = [](auto& c, std::uint32_t layers) { c.floor = static_cast<float>(layers % 5) / 4.0F; };
    budget_contract<kvtl::head_adaptive<>>(vary);
    budget_contract<kvtl::head_adaptive<kvtl::pyramid>>(vary);
}

TEST_CASE("head_adaptive: counts of the joint best, with a floor") {
    using state_t = kvtl::head_adaptive<>::state;
    const kvtl::budget_limits limits{1, 2, 10, 0, 50};
    std::vector<std::byte> memory(state_t::bytes(limits));
    board b{1, 2, 50, 1, {std::vector<float>(20, 2.0F), std::vector<float>(20, 1.0F)}, {}};
    std::vector<std::uint32_t> keep = {20, 20};
    state_t({.floor = 0.0F, .layers = {}}, limits, memory).revise(0, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{20, 0});
    keep = {20, 20};
    state_t({.floor = 0.2F, .layers = {}}, limits, memory).revise(0, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{18, 2});
}

TEST_CASE("head_adaptive: each layer by itself, whatever the others' scores are") {
    const kvtl::budget_limits limits{6, 3, 12, 8, 60};
    const board b = divide<kvtl::head_adaptive<>>({}, limits, 60, 3);
    for (std::uint32_t l = 0; l < 6; ++l) CHECK(b.keep(l, 0) + b.keep(l, 1) + b.keep(l, 2) == 3 * 12);
}

TEST_CASE("head_adaptive: settings that can never work are named, its own and those of the layers") {
    using state_t = kvtl::head_adaptive<kvtl::pyramid>::state;
    check_refusal(state_t::check({.floor = 1.5F, .layers = {}}, {}), "budget.floor is 1.5");
    check_refusal(state_t::check({.floor = NAN, .layers = {}}, {}), "budget.floor is");
    check_refusal(state_t::check({.floor = 0.2F, .layers = {.beta = 0.5F}}, {}), "budget.beta is 0.5");
}

} // namespace budget_head_adaptive_test
