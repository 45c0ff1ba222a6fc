// table: layers share by an importance that was found offline.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_table.hpp>

#include "contracts/budget.hpp"

namespace budget_table_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

namespace {
} // namespace

TEST_CASE("table keeps the promises of a budget, with a table and without") {
    budget_contract<kvtl::table>();
    std::vector<float> importance;
    budget_contract<kvtl::table>([&](kvtl::table::config& c, std::uint32_t layers) {
        oracle::generator random(layers);
        importance.clear();
        for (std::uint32_t l = 0; l < layers; ++l)
            importance.push_back(random.below(3) == 0 ? 0.0F : static_cast<float>(random.uniform(0, 9)));
        c.importance = importance;
        c.least = layers % 7;
        c.cap = static_cast<float>(1 + layers % 4);
    });
}

TEST_CASE("table: a least part, the rest by importance, capped") {
    using state_t = kvtl::table::state;
    const kvtl::budget_limits limits{4, 1, 100, 8, 1000};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const std::vector<float> importance = {1, 1, 2, 996};
    const kvtl::table::config c{.least = 32, .cap = 3.0F, .importance = importance};
    const state_t state(c, limits, memory);
    CHECK(state.provisional(3, 1000) == 3 * 108 - 8); // 8 of every head are pinned
    CHECK(state.provisional(2, 1000) == 24 + 6);      // half of the 12 that are left
    CHECK(state.provisional(0, 1000) == 24 + 3);
    // A least part that the pinned ones are already.
    const state_t covered({.least = 8, .cap = 3.0F, .importance = importance}, limits, memory);
    CHECK(covered.provisional(3, 1000) == 3 * 108 - 8);
    CHECK(covered.provisional(2, 1000) == 42); // half of 84
}

TEST_CASE("table: the importance is copied") {
    using state_t = kvtl::table::state;
    const kvtl::budget_limits limits{4, 1, 100, 8, 1000};
    std::vector<std::byte> memory(state_t::bytes(limits));
    std::vector<float> importance = {1, 1, 2, 996};
    const state_t state({.least = 32, .cap = 3.0F, .importance = importance}, limits, memory);
    std::fill(importance.begin(), importance.end(), 1.0F);
    CHECK(state.provisional(3, 1000) == 316);
}

TEST_CASE("table: settings that can never work are named") {
    using state_t = kvtl::table::state;
    const kvtl::budget_limits limits{4, 1, 100, 8, 1000};
    const std::vector<float> three(3, 1.0F), negative = {1, 1, -2, 1}, missing = {1, 1, NAN, 1};
    check_refusal(state_t::check({.importance = three}, limits), "budget.importance has 3 numbers");
    check_refusal(state_t::check({.importance = negative}, limits), "budget.importance of layer 2 is -2");
    check_refusal(state_t::check({.importance = missing}, limits), "budget.importance of layer 2 is");
    check_refusal(state_t::check({.cap = 0.5F}, limits), "budget.cap is 0.5");
    check_refusal(state_t::check({.cap = NAN}, limits), "budget.cap is");
}

} // namespace budget_table_test
