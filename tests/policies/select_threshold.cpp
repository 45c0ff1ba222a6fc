// threshold against its definition in double precision: what passes a bar, and where the bar lies.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_threshold.hpp>

#include "support/units_above_bar.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace select_threshold_test {

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

namespace {
using selector = threshold<reduce::group_mean>;
using state = selector::state;

/// The share of one entry of each unit, in shares of the mean entry.
std::vector<double> shares(const units& x, std::uint32_t heads) {
    double sum = 0, entries = 0;
    std::vector<double> share;
    for (std::uint32_t u = 0; u < x.score.size(); ++u) {
        share.push_back(std::exp(static_cast<double>(x.score[u]) / std::sqrt(dim) / heads));
        sum += x.unit[u].entries * share.back();
        entries += x.unit[u].entries;
    }
    for (double& s : share) s *= entries / sum;
    return share;
}
template <class Call> auto with_input(const units& x, std::uint32_t budget, float bar, const Call& call) {
    std::vector<std::uint32_t> order(x.score.size());
    std::vector<std::uint64_t> scratch(x.score.size());
    std::vector<chosen_unit> out(x.score.size());
    choice_input in(x.score, x.lane(), budget, order, scratch);
    in.bar = bar;
    return call(in, std::span<chosen_unit>(out));
}
std::vector<std::uint32_t> choose(const state& s, const units& x, std::uint32_t budget, float bar) {
    return with_input(x, budget, bar, [&](const choice_input& in, std::span<chosen_unit> out) {
        std::vector<std::uint32_t> chosen;
        for (const chosen_unit& c : out.first(s.choose(in, out))) chosen.push_back(c.unit);
        std::sort(chosen.begin(), chosen.end());
        return chosen;
    });
}
void note(const state& s, const units& x, std::uint32_t budget, selector::prompt_notes& notes) {
    with_input(x, budget, 0.0F, [&](const choice_input& in, std::span<chosen_unit> out) {
        s.note(in, out, notes);
        return 0;
    });
}
constexpr float nothing = -std::numeric_limits<float>::infinity();
} // namespace

TEST_CASE("threshold: without a prompt it is what any selector is") {
    kvtl_test::selector_suite::keeps_its_promises<selector>();
}

TEST_CASE("threshold: what passes the bar, the best within the budget") {
    static_assert(selector_for<selector>);
    std::size_t some = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const units x =
            random_units_of(1 + seed * 7, seed, seed % 3 == 0 ? 0 : static_cast<std::uint32_t>(seed % 5));
        for (const float share : {1e-6F, 0.1F, 2.0F, 30.0F})
            for (const std::uint32_t heads : {1U, 3U})
                for (const std::uint32_t budget : {0U, 1U, 40U, 100000U}) {
                    const auto of = shares(x, heads);
                    const auto passes = [&](std::uint32_t u) { return of[u] > static_cast<double>(share); };
                    const state s({.heads = heads}, model());
                    const auto got = choose(s, x, budget, std::log(share));
                    CHECK(got == naive(x, budget, passes));
                    some += got.size();
                }
    }
    CHECK(some > 10000);
    CHECK(choose(state({}, model()), units{}, 10, nothing).empty());
}

TEST_CASE(
    "threshold: the bar of a prompt lets the wanted part of the entries pass, over all layers together") {
    // Layers differ in how spread they are: one bar for all gives them different parts.
    std::vector<std::vector<units>> layer(3);
    for (std::uint64_t l = 0; l < 3; ++l)
        for (std::uint64_t t = 0; t < 40; ++t) {
            layer[l].push_back(random_units_of(200, 1000 * l + t));
            for (float& x : layer[l].back().score) x *= static_cast<float>(1 + l) / 2;
        }
    for (const float kept : {0.0F, 0.1F, 0.5F, 0.8F, 1.0F})
        for (const std::uint32_t budget : {60U, 300U}) {
            CAPTURE(kept);
            CAPTURE(budget);
            const state s({.kept = kept}, model());
            std::vector<selector::prompt_notes> notes(4); // and a layer of which nothing was seen
            for (std::size_t l = 0; l < 3; ++l)
                for (const units& x : layer[l]) note(s, x, budget, notes[l]);
            const float bar = s.settle(notes);
            std::array<double, 3> taken{}, all{};
            for (std::size_t l = 0; l < 3; ++l)
                for (const units& x : layer[l]) {
                    for (const std::uint32_t u : choose(s, x, budget, bar)) taken[l] += x.unit[u].entries;
                    for (const std::uint32_t u : naive(x, budget, [](std::uint32_t) { return true; }))
                        all[l] += x.unit[u].entries;
                }
            const double part = (taken[0] + taken[1] + taken[2]) / (all[0] + all[1] + all[2]);
            CHECK(std::fabs(part - static_cast<double>(kept)) < 0.01);
            if (kept == 0.5F) CHECK(std::fabs(taken[0] / all[0] - taken[2] / all[2]) > 0.1);
            if (kept == 1.0F) CHECK(bar == nothing);
        }
    const std::vector<selector::prompt_notes> unseen(2);
    CHECK(state({}, model()).settle(unseen) == nothing);
}

TEST_CASE("threshold: settings that can never work are named") {
    CHECK(state::check({}).ok());
    for (const float bad : {-0.1F, 1.5F, NAN})
        CHECK(state::check({.kept = bad}).code() == errc::invalid_argument);
}

} // namespace select_threshold_test
