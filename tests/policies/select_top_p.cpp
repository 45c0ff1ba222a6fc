// top_p against its definition in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/select_top_p.hpp>

#include "support/units_above_bar.hpp"

#include <cmath>
#include <vector>

namespace select_top_p_test {

using namespace kvtl;
using namespace kvtl_test::selector_suite::bar;

namespace {

using of_logits = top_p<reduce::group_max>;
using of_weights = top_p<reduce::softmax_sum>;

/// The best units within the budget until they have a share p of sum entries * weight. `margin`: distance of
/// the sums from p, at least; what is nearer depends on rounding.
std::vector<std::uint32_t> naive_top_p(const units& x, std::uint32_t budget, double p, const auto& weight,
                                       double& margin) {
    double all = 0;
    for (std::uint32_t u = 0; u < x.score.size(); ++u) all += x.unit[u].entries * weight(u);
    auto left = naive(x, budget, [](std::uint32_t) { return true; });
    std::vector<std::uint32_t> chosen;
    double sum = 0;
    while (!left.empty() && sum < p * all) {
        const auto best = std::max_element(left.begin(), left.end(),
                                           [&](auto a, auto b) { return x.score[a] < x.score[b]; });
        sum += x.unit[*best].entries * weight(*best);
        margin = std::min(margin, std::fabs(sum / all - p));
        chosen.push_back(*best);
        left.erase(best);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

} // namespace

TEST_CASE("top_p of 1 is top-k, as every selector within its budget") {
    static_assert(selector_for<of_logits> && of_logits::source == query::current);
    static_assert(top_p<reduce::group_mean, query::predicted>::source == query::predicted);
    kvtl_test::selector_suite::keeps_its_promises<top_p<reduce::group_mean>>();
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const units x = random_units_of(1 + seed * 7, seed, static_cast<std::uint32_t>(seed % 3));
        for (const std::uint32_t budget : {0U, 1U, 40U, 100000U})
            CHECK(choose(of_logits::state({.p = 1.0F}, model()), x, budget) ==
                  naive(x, budget, [](std::uint32_t) { return true; }));
    }
    CHECK(choose(of_logits::state({}, model()), units{}, 10).empty());
}

TEST_CASE("top_p: the best units until they have the share of the mass") {
    std::size_t all = 0, fewer = 0, compared = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        units x =
            random_units_of(1 + seed * 7, seed, seed % 3 == 0 ? 0 : static_cast<std::uint32_t>(seed % 5));
        for (const float p : {0.1F, 0.5F, 0.9F, 0.99F})
            for (const std::uint32_t heads : {1U, 2U})
                for (const std::uint32_t budget : {0U, 1U, 40U, 100000U}) {
                    const auto logits = [&](std::uint32_t u) {
                        return std::exp(static_cast<double>(x.score[u]) / std::sqrt(dim) / heads);
                    };
                    double margin = 1;
                    const auto expected = naive_top_p(x, budget, static_cast<double>(p), logits, margin);
                    if (margin < 1e-5) continue;
                    const auto got = choose(of_logits::state({p, heads}, model()), x, budget);
                    CHECK(got == expected);
                    ++compared;
                    all += got.size();
                    fewer += got.size() < naive(
                                              x, budget, [](std::uint32_t) { return true; })
                                              .size();
                }
    }
    CHECK(compared > 1800);
    CHECK(all > 10000);
    CHECK(fewer > 500);
}

TEST_CASE("top_p: scores that are weights of attention count as they are") {
    std::size_t compared = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        units x =
            random_units_of(1 + seed * 7, seed, seed % 3 == 0 ? 0 : static_cast<std::uint32_t>(seed % 5));
        for (float& s : x.score) s = std::exp(s / 8);
        for (const float p : {0.3F, 0.8F})
            for (const std::uint32_t budget : {1U, 40U, 100000U}) {
                double margin = 1;
                const auto expected = naive_top_p(
                    x, budget, static_cast<double>(p),
                    [&](std::uint32_t u) { return static_cast<double>(x.score[u]); }, margin);
                if (margin < 1e-5) continue;
                CHECK(choose(of_weights::state({p, 1}, model()), x, budget) == expected);
                ++compared;
            }
    }
    CHECK(compared > 230);
}

TEST_CASE("top_p: shares that can never be meant are named") {
    CHECK(of_logits::state::check({}).ok());
    CHECK(of_logits::state::check({.p = 1.0F}).ok());
    for (const float bad : {0.0F, -0.1F, 1.5F, NAN}) {
        const status s = of_logits::state::check({.p = bad});
        CHECK(s.code() == errc::invalid_argument);
        CHECK(std::string_view(s.what()).find("valid: above 0, to 1") != std::string_view::npos);
    }
}

} // namespace select_top_p_test
