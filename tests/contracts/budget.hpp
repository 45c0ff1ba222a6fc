// What every budget promises, whatever the scores are: a number never grows again, sums are exact after the
// last layer, what is held stays within the declared peak, and nothing is remembered from one sequence to the
// next. The board here cuts lanes back as the shard does.
//
//   budget_contract<cascade>();                                  // defaults
//   budget_contract<progressive>([](auto& c, layers) { ... });   // settings that vary with the number of
//   layers
//
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/geometry.hpp>
#include <kvtl/slots/budget.hpp>

#include "support/guarded_bytes.hpp"
#include "support/oracle.hpp"
#include "support/settings.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace kvtl_test {

namespace budget_suite {

template <class Policy> using state_of = typename Policy::state;

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
    [[nodiscard]] std::vector<std::uint32_t> kept() const {
        std::vector<std::uint32_t> k;
        for (const auto& s : score) k.push_back(static_cast<std::uint32_t>(s.size()));
        return k;
    }
};

/// What the scores of a prompt look like.
enum class scores {
    usual,  ///< some lanes have much, some little; a few scores equal each other
    zero,   ///< nothing was ever attended
    strange ///< NaN, infinities of both signs, the largest and the smallest numbers
};

inline float draw(oracle::generator& random, scores kind, double scale) {
    constexpr float strange[] = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::denorm_min(),
                                 -0.0F,
                                 0.0F,
                                 -1.0F};
    if (kind == scores::zero) return 0.0F;
    if (kind == scores::strange) return strange[random.below(std::size(strange))];
    return static_cast<float>(random.below(20) == 0 ? scale : scale * std::exp(random.normal()));
}

/// n scores of one lane as the shard ranks them: best first, NaN last.
inline std::vector<float> lane_scores(oracle::generator& random, std::size_t n, scores kind) {
    const double scale = std::exp(2.0 * random.normal());
    std::vector<float> s(n), sorted;
    for (float& x : s) x = draw(random, kind, scale);
    for (const std::uint32_t i : oracle::top_k(s.data(), n, n)) sorted.push_back(s[i]);
    return sorted;
}

/// A prompt of which n entries compete, layer by layer; every promise is checked on the way.
template <class Policy>
board run(const state_of<Policy>& state, const kvtl::budget_limits& limits, std::uint32_t n,
          std::uint64_t seed, scores kind = scores::usual, std::uint64_t* most_held = nullptr) {
    CAPTURE(std::string(Policy::name));
    CAPTURE(limits.layers);
    CAPTURE(limits.heads);
    CAPTURE(limits.base);
    CAPTURE(n);
    CAPTURE(static_cast<int>(kind));
    oracle::generator random(seed);
    board b{limits.layers, limits.heads, n, 0, {}, {}};
    b.score.resize(std::size_t{limits.layers} * limits.heads);
    std::vector<std::uint32_t> keep(b.score.size(), 0);
    for (std::uint32_t l = 0; l < limits.layers; ++l) {
        b.preferences.push_back(draw(random, kind, 1.0));
        const std::uint32_t allowed = state.provisional(l, n);
        REQUIRE(allowed <= n);
        for (std::uint32_t h = 0; h < limits.heads; ++h) {
            auto& s = b.score[l * limits.heads + h];
            s = lane_scores(random, n, kind);
            s.resize(allowed);
            keep[l * limits.heads + h] = allowed;
        }
        b.seen = l + 1;
        REQUIRE(b.held() <= state.peak());
        if (most_held != nullptr) *most_held = std::max(*most_held, b.held());
        const auto before = keep;
        state.revise(l, b, keep);
        const bool none_grew = std::equal(keep.begin(), keep.end(), before.begin(),
                                          [](auto now, auto then) { return now <= then; });
        REQUIRE(none_grew);
        if (!Policy::late) REQUIRE(keep == before);
        for (std::size_t i = 0; i < keep.size(); ++i) b.score[i].resize(keep[i]);
    }
    CHECK(b.held() == std::uint64_t{std::min(n, limits.base)} * limits.layers * limits.heads);
    return b;
}
/// The same with a state of its own.
template <class Policy>
board divide(const typename Policy::config& config, const kvtl::budget_limits& limits, std::uint32_t n,
             std::uint64_t seed, std::uint64_t* most_held = nullptr) {
    REQUIRE(state_of<Policy>::check(config, limits).ok());
    guarded_bytes memory(state_of<Policy>::bytes(limits));
    const board b = run<Policy>(state_of<Policy>(config, limits, memory.memory()), limits, n, seed,
                                scores::usual, most_held);
    CHECK(memory.intact());
    return b;
}

} // namespace budget_suite

/// `vary(config, layers)` changes the settings with the case.
template <class Policy, class Vary> void budget_contract(const Vary& vary) {
    using namespace budget_suite;
    using state = state_of<Policy>;
    static_assert(kvtl::budget_for<Policy>);
    static_assert(std::is_trivially_copyable_v<state>);
    static_assert(!Policy::reads_preference || Policy::late, "preferences are known when layers were seen");
    CHECK(!std::string_view(Policy::name).empty());
    CHECK(setting_names(typename Policy::config{}).size() <= 8);

    oracle::generator random(17);
    for (std::uint32_t layers = 1; layers <= 80; layers += layers < 12 ? 1 : 7)
        for (const scores kind : {scores::usual, scores::zero, scores::strange}) {
            const auto heads = static_cast<std::uint32_t>(1 + random.below(4));
            const auto base = static_cast<std::uint32_t>(random.below(24));
            const auto n = static_cast<std::uint32_t>(random.below(90));
            const kvtl::budget_limits limits{layers, heads, base, 8, 90};
            typename Policy::config c;
            vary(c, layers);
            REQUIRE(state::check(c, limits).ok());
            guarded_bytes memory(state::bytes(limits)), other(state::bytes(limits), 0x5A);
            const state one(c, limits, memory.memory()), two(c, limits, other.memory());
            const board first = run<Policy>(one, limits, n, layers, kind);
            // Another sequence in between, shorter or longer, leaves nothing behind; nor does the memory.
            static_cast<void>(run<Policy>(one, limits, 90 - n, layers + 100, kind));
            CHECK(run<Policy>(one, limits, n, layers, kind).kept() == first.kept());
            const state copy = two;
            CHECK(run<Policy>(copy, limits, n, layers, kind).kept() == first.kept());
            CHECK(memory.intact());
            CHECK(other.intact());
        }
}
template <class Policy> void budget_contract() {
    budget_contract<Policy>([](typename Policy::config&, std::uint32_t) {});
}

} // namespace kvtl_test
