// Every budget policy, with random scores, for 1 to 80 layers and intervals 1 to 7: sums are exact, nothing
// grows back, and what is held never exceeds the declared peak.
// SPDX-License-Identifier: MIT
#include <kvtl/geometry.hpp>
#include <kvtl/policies/budget_cascade.hpp>
#include <kvtl/policies/budget_head_adaptive.hpp>
#include <kvtl/policies/budget_progressive.hpp>
#include <kvtl/policies/budget_pyramid.hpp>
#include <kvtl/policies/budget_table.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>

namespace {
using geometry = kvtl::geometry<kvtl::shape{}>;

/// Lanes with sorted scores, cut back as a shard would.
struct board {
    std::uint32_t layers, heads, n, seen = 0;
    std::vector<std::vector<float>> score; ///< by lane, best first, those held
    std::vector<float> preferences;

    [[nodiscard]] std::uint32_t layers_seen() const noexcept { return seen; }
    [[nodiscard]] std::uint32_t competing() const noexcept { return n; }
    [[nodiscard]] std::uint32_t keep(std::uint32_t l, std::uint32_t h) const noexcept {
        return static_cast<std::uint32_t>(score[l * heads + h].size());
    }
    template <class F> void visit(std::uint32_t l, std::uint32_t h, F&& f) const noexcept {
        for (const float s : score[l * heads + h]) f(s);
    }
    [[nodiscard]] float preference(std::uint32_t l) const noexcept { return preferences[l]; }
    [[nodiscard]] std::uint64_t held() const {
        std::uint64_t sum = 0;
        for (const auto& s : score) sum += s.size();
        return sum;
    }
};

/// n scores of one lane, best first; some lanes have much, some little; a few equal each other.
std::vector<float> lane_scores(oracle::generator& random, std::size_t n) {
    const double scale = std::exp(2.0 * random.normal());
    std::vector<float> s(n);
    for (float& x : s)
        x = static_cast<float>(random.below(20) == 0 ? scale : scale * std::exp(random.normal()));
    std::sort(s.begin(), s.end(), std::greater<>());
    return s;
}

template <class Policy>
board run(const typename Policy::config& config, kvtl::budget_limits limits, std::uint32_t n,
          std::uint64_t seed, std::uint64_t* most_held = nullptr) {
    using state_t = typename Policy::template state<geometry>;
    CAPTURE(std::string(Policy::name));
    CAPTURE(limits.layers);
    CAPTURE(limits.heads);
    CAPTURE(limits.base);
    CAPTURE(n);
    REQUIRE(state_t::check(config, limits).ok());
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state(config, limits, memory);
    oracle::generator random(seed);
    board b{limits.layers, limits.heads, n, 0, {}, {}};
    b.score.resize(std::size_t{limits.layers} * limits.heads);
    std::vector<std::uint32_t> keep(b.score.size(), 0);
    for (std::uint32_t l = 0; l < limits.layers; ++l) {
        b.preferences.push_back(static_cast<float>(std::exp(random.normal())));
        for (std::uint32_t h = 0; h < limits.heads; ++h) {
            auto& s = b.score[l * limits.heads + h];
            s = lane_scores(random, n);
            s.resize(std::min(n, state.provisional(l, n)));
            keep[l * limits.heads + h] = static_cast<std::uint32_t>(s.size());
        }
        b.seen = l + 1;
        REQUIRE(b.held() <= state.peak());
        if (most_held != nullptr) *most_held = std::max(*most_held, b.held());
        const auto before = keep;
        state.revise(l, b, keep);
        const bool none_grew = std::equal(keep.begin(), keep.end(), before.begin(),
                                          [](auto now, auto then) { return now <= then; });
        REQUIRE(none_grew);
        for (std::size_t i = 0; i < keep.size(); ++i) b.score[i].resize(keep[i]);
    }
    const std::uint64_t all = std::uint64_t{std::min(n, limits.base)} * limits.layers * limits.heads;
    CHECK(b.held() == all);
    return b;
}

template <class Policy>
void run_all(const std::function<void(typename Policy::config&, std::uint32_t)>& vary = {}) {
    oracle::generator random(17);
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 20 ? 1 : 4) {
        const auto heads = static_cast<std::uint32_t>(1 + random.below(4));
        const auto base = static_cast<std::uint32_t>(random.below(24));
        const auto n = static_cast<std::uint32_t>(random.below(90));
        typename Policy::config c;
        if (vary) vary(c, layers);
        static_cast<void>(run<Policy>(c, {layers, heads, base, 8, 90}, n, layers));
    }
}

} // namespace

TEST_CASE("sums are exact, nothing grows back, the peak holds") {
    run_all<kvtl::uniform>();
    run_all<kvtl::pyramid>();
    run_all<kvtl::pyramid_with_window>();
    run_all<kvtl::cascade>();
    run_all<kvtl::cascade_between<2, 1>>();
    run_all<kvtl::head_adaptive<>>();
    run_all<kvtl::head_adaptive<kvtl::pyramid>>();
    run_all<kvtl::table>();
    for (std::uint32_t interval = 1; interval <= 7; ++interval) {
        const auto vary = [&](auto& c, std::uint32_t layers) {
            c.interval = interval;
            c.r_max = static_cast<float>(1 + layers % 11);
            c.floor = layers % 3 == 0 ? 0.25F : 0.0F;
        };
        run_all<kvtl::progressive>(vary);
        run_all<kvtl::progressive_heads>(vary);
    }
}

TEST_CASE("progressive: the declared peak is what a longest prompt really comes to, not more") {
    using state_t = kvtl::progressive::state<geometry>;
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 20 ? 1 : 6)
        for (std::uint32_t interval = 1; interval <= 7; ++interval) {
            const kvtl::progressive::config c{.r_max = static_cast<float>(1 + (layers + interval) % 10),
                                              .interval = interval};
            const kvtl::budget_limits limits{layers, 2, 6, 8, 40};
            std::vector<std::byte> memory(state_t::bytes(limits));
            std::uint64_t most = 0;
            static_cast<void>(run<kvtl::progressive>(c, limits, 40, layers, &most));
            CAPTURE(layers);
            CAPTURE(interval);
            CHECK(most == state_t(c, limits, memory).peak());
            CHECK(most <= std::uint64_t{layers} * 2 * 40); // never more than the whole prompt
        }
}

TEST_CASE("cascade_between: the layers at the ends keep the mean, whatever the others get") {
    const kvtl::budget_limits limits{9, 2, 16, 8, 200};
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const board b = run<kvtl::cascade_between<2, 1>>({}, limits, 200, seed);
        for (const std::uint32_t l : {0U, 1U, 8U}) CHECK(b.keep(l, 0) == 16);
        double sum = 0;
        for (std::uint32_t l = 2; l < 8; ++l) sum += static_cast<double>(b.preferences[l]);
        for (std::uint32_t l = 2; l < 8; ++l) {
            const double share = static_cast<double>(b.preferences[l]) / sum * 16.0 * 6;
            CHECK(std::fabs(b.keep(l, 1) - share) <= 2.0);
        }
    }
    for (std::uint32_t layers = 1; layers <= 3; ++layers) { // nobody is left to share
        const board b = run<kvtl::cascade_between<2, 1>>({}, {layers, 1, 16, 8, 200}, 200, layers);
        for (std::uint32_t l = 0; l < layers; ++l) CHECK(b.keep(l, 0) == 16);
    }
}

TEST_CASE("progressive: the count of the best scores decides, by definition") {
    // Two layers, two heads, base 4: the best 4 * 2 * 2 = 16 of all scores; layers share 8 per head.
    using state_t = kvtl::progressive::state<geometry>;
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
    using state_t = kvtl::progressive::state<geometry>;
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

TEST_CASE("cascade: cutting back step by step ends where one division would") {
    oracle::generator random(5);
    for (int round = 0; round < 50; ++round) {
        const auto layers = static_cast<std::uint32_t>(1 + random.below(40));
        const kvtl::budget_limits limits{layers, 1, 16, 8, 700};
        const board b = run<kvtl::cascade>({}, limits, 700, static_cast<std::uint64_t>(round));
        double sum = 0;
        for (const float p : b.preferences) sum += static_cast<double>(p);
        for (std::uint32_t l = 0; l < layers; ++l) {
            const double share = static_cast<double>(b.preferences[l]) / sum * 16.0 * layers;
            CHECK(std::fabs(b.keep(l, 0) - share) <= 2.0); // each step rounds by less than one
        }
    }
}

TEST_CASE("head_adaptive: counts of the joint best, with a floor") {
    using state_t = kvtl::head_adaptive<>::state<geometry>;
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

TEST_CASE("pyramid: linear in the layer, as published") {
    using state_t = kvtl::pyramid::state<geometry>;
    const kvtl::budget_limits limits{5, 1, 100, 8, 1000};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const state_t state({.beta = 20.0F}, limits, memory);
    const double published[] = {195, 147.5, 100, 52.5, 5}; // from 2 * 100 - 5 down to 100 / 20
    for (std::uint32_t l = 0; l < 5; ++l) CHECK(std::fabs(state.provisional(l, 1000) - published[l]) < 1.0);
    const kvtl::budget_limits more{5, 1, 300, 8, 1000};
    const kvtl::pyramid_with_window::state<geometry> both({.beta = 20.0F}, more, memory);
    CHECK(std::fabs(both.provisional(0, 1000) - (2 * 308 - 15.4 - 8)) < 1.0);
}

TEST_CASE("table: a least part, the rest by importance, capped") {
    using state_t = kvtl::table::state<geometry>;
    const kvtl::budget_limits limits{4, 1, 100, 8, 1000};
    std::vector<std::byte> memory(state_t::bytes(limits));
    const std::vector<float> importance = {1, 1, 2, 996};
    const kvtl::table::config c{.least = 32, .cap = 3.0F, .importance = importance};
    const state_t state(c, limits, memory);
    CHECK(state.provisional(3, 1000) == 300);
    CHECK(state.provisional(2, 1000) == 34); // half of the 4 that are left
    CHECK(state.provisional(0, 1000) == 33);
    const std::vector<float> wrong(3, 1.0F);
    const auto refused = state_t::check({.least = 32, .cap = 3.0F, .importance = wrong}, limits);
    CHECK(std::string(refused.what()).find("3 numbers; valid: one per layer (4)") != std::string::npos);
}

TEST_CASE("split_exactly: exact, within caps, proportional") {
    oracle::generator random(9);
    for (int round = 0; round < 3000; ++round) {
        const std::size_t n = 1 + random.below(12);
        std::vector<double> weight(n);
        std::vector<std::uint32_t> cap(n), out(n);
        std::uint64_t room = 0;
        for (std::size_t i = 0; i < n; ++i) {
            weight[i] = random.below(5) == 0 ? 0.0 : std::exp(3.0 * random.normal());
            cap[i] = static_cast<std::uint32_t>(random.below(4) == 0 ? 0 : random.below(1000));
            room += cap[i];
        }
        const std::uint64_t total = random.below(3000);
        auto used = weight;
        kvtl::split_exactly(used, cap, total, out);
        CHECK(std::accumulate(out.begin(), out.end(), std::uint64_t{0}) == std::min(room, total));
        bool capped = true, fair = true;
        for (std::size_t i = 0; i < n; ++i) {
            capped = capped && out[i] <= cap[i];
            for (std::size_t j = 0; j < n; ++j) // who has room got at least its proportion
                if (weight[i] > 0 && weight[j] > 0 && out[i] < cap[i])
                    fair = fair && (out[i] + 1.001) / weight[i] >= (out[j] - 1.001) / weight[j];
        }
        CHECK(capped);
        CHECK(fair);
    }
}

TEST_CASE("rank_threshold finds where the best end, ties in order") {
    oracle::generator random(10);
    for (int round = 0; round < 300; ++round) {
        std::vector<float> s(1 + random.below(300));
        for (float& x : s) x = static_cast<float>(random.below(40)) - 20.0F;
        const std::size_t n = random.below(s.size() + 10);
        auto t = kvtl::rank_threshold(n, [&](auto&& f) {
            for (const float x : s) f(x);
        });
        std::vector<std::uint32_t> passed;
        for (std::uint32_t i = 0; i < s.size(); ++i)
            if (t.passes(s[i])) passed.push_back(i);
        auto best = oracle::top_k(s.data(), s.size(), n);
        std::sort(best.begin(), best.end());
        CHECK(passed == best);
    }
}
