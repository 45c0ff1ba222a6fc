// progressive: layers (or heads) compete by how many of the best scores are theirs, every few layers anew.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/budget_progressive.hpp>

#include "contracts/budget.hpp"

namespace budget_progressive_test {

using namespace kvtl_test;
using budget_suite::board, budget_suite::divide;

namespace {
} // namespace

TEST_CASE("progressive keeps the promises of a budget, for every interval") {
    for (std::uint32_t interval = 1; interval <= 7; ++interval) {
        const auto vary = [&](auto& c, std::uint32_t layers) {
            c.interval = interval;
            c.r_max = static_cast<float>(1 + layers % 11);
            c.floor = layers % 3 == 0 ? 0.25F : 0.0F;
        };
        budget_contract<kvtl::progressive>(vary);
        budget_contract<kvtl::progressive_heads>(vary);
    }
}

TEST_CASE("progressive: the declared peak is what a longest prompt really comes to, not more") {
    using state_t = kvtl::progressive::state;
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 20 ? 1 : 6)
        for (std::uint32_t interval = 1; interval <= 7; ++interval) {
            const kvtl::progressive::config c{.r_max = static_cast<float>(1 + (layers + interval) % 10),
                                              .interval = interval};
            const kvtl::budget_limits limits{layers, 2, 6, 8, 40};
            std::vector<std::byte> memory(state_t::bytes(limits));
            std::uint64_t most = 0;
            static_cast<void>(divide<kvtl::progressive>(c, limits, 40, layers, &most));
            CAPTURE(layers);
            CAPTURE(interval);
            CHECK(most == state_t(c, limits, memory).peak());
            CHECK(most <= std::uint64_t{layers} * 2 * 40); // never more than the whole prompt
        }
}

TEST_CASE("progressive: the count of the best scores decides, by definition") {
    // Two layers, two heads, base 4: the best 4 * 2 * 2 = 16 of all scores; layers share 8 per head.
    using state_t = kvtl::progressive::state;
    const kvtl::budget_limits limits{2, 2, 4, 0, 40};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state({.r_max = 10.0F, .interval = 2}, limits, memory);
    board b{2, 2, 40, 2, {}, {}};
    for (const int best : {10, 2, 3, 1}) { // scores above 1, by lane
        std::vector<float> s(40, 0.0F);
        for (int i = 0; i < best; ++i) s[static_cast<std::size_t>(i)] = static_cast<float>(20 - i);
        b.score.push_back(s);
    }
    std::vector<std::uint32_t> keep(4, 40);
    state.revise(1, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{6, 6, 2, 2}); // 12 : 4 of 8
}

TEST_CASE("a share that would grow back does not, and the rest goes to who still holds more") {
    using state_t = kvtl::progressive::state;
    const kvtl::budget_limits limits{3, 1, 10, 0, 100};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state({.r_max = 10.0F, .interval = 1}, limits, memory);
    board b{3, 1, 100, 1, {std::vector<float>(100, 1.0F), {}, {}}, {}};
    std::vector<std::uint32_t> keep = {100, 0, 0};
    state.revise(0, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{30, 0, 0}); // the whole budget
    b.score[0].resize(30);
    b.score[1] = std::vector<float>(100, 2.0F); // takes everything: 20 of the best 20
    b.seen = 2, keep[1] = 100;
    state.revise(1, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{0, 30, 0});
    b.score[0].clear(), b.score[1].resize(30);
    b.score[2] = std::vector<float>(100, 0.5F); // nothing of the best 30
    b.seen = 3, keep[2] = 100;
    state.revise(2, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{0, 30, 0});
}

TEST_CASE("progressive_heads: every head competes for itself, none falls below the floor") {
    using state_t = kvtl::progressive_heads::state;
    const kvtl::budget_limits limits{2, 2, 10, 0, 40};
    std::vector<std::byte> memory(state_t::bytes(limits));
    board b{2, 2, 40, 2, {}, {}};
    for (const float worth : {4.0F, 3.0F, 2.0F, 1.0F}) b.score.push_back(std::vector<float>(40, worth));
    std::vector<std::uint32_t> keep(4, 40);
    state_t({.r_max = 10.0F, .interval = 2}, limits, memory).revise(1, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{40, 0, 0, 0}); // the best 40 are all of one head
    keep = {40, 40, 40, 40};
    state_t({.r_max = 10.0F, .interval = 2, .floor = 0.5F}, limits, memory).revise(1, b, keep);
    CHECK(keep == std::vector<std::uint32_t>{25, 5, 5, 5});
}

TEST_CASE("progressive: between two revisions nothing changes") {
    using state_t = kvtl::progressive::state;
    const kvtl::budget_limits limits{7, 1, 4, 0, 40};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state({.r_max = 10.0F, .interval = 3}, limits, memory);
    board b{7, 1, 40, 0, std::vector<std::vector<float>>(7, std::vector<float>(40, 1.0F)), {}};
    for (std::uint32_t l = 0; l < 7; ++l) {
        std::vector<std::uint32_t> keep(7, 40);
        state.revise(l, b, keep);
        const bool revises = l == 2 || l == 5 || l == 6; // every third layer, and the last
        CHECK((keep != std::vector<std::uint32_t>(7, 40)) == revises);
    }
}

TEST_CASE("progressive: settings that can never work are named") {
    using state_t = kvtl::progressive::state;
    check_refusal(state_t::check({.r_max = 0.5F}, {}), "budget.r_max is 0.5");
    check_refusal(state_t::check({.r_max = NAN}, {}), "budget.r_max is");
    check_refusal(state_t::check({.interval = 0}, {}), "budget.interval is 0");
    check_refusal(state_t::check({.floor = 1.5F}, {}), "budget.floor is 1.5");
    check_refusal(state_t::check({.floor = -0.5F}, {}), "budget.floor is -0.5");
}

} // namespace budget_progressive_test
