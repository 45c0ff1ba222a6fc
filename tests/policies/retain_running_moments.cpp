// running_moments: the score of the prompt fades as the mean and variance of the attention since then take over.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_running_moments.hpp>

#include "contracts/retention.hpp"

namespace retain_running_moments_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
/// The attention of each token since the entry came, and weights that fall by (1 - 1 / memory) per token.
struct history {
    double memory, gamma, prompt;
    std::vector<double> mass{};

    void feed(std::uint32_t, double m) { mass.push_back(m); }
    [[nodiscard]] double worth(std::uint32_t) const {
        const double stays = 1.0 - 1.0 / memory;
        double mean = 0, square = 0;
        for (std::size_t i = 0; i < mass.size(); ++i) {
            const double weight = std::pow(stays, static_cast<double>(mass.size() - 1 - i)) / memory;
            mean += weight * mass[i], square += weight * mass[i] * mass[i];
        }
        const double before = std::pow(stays, static_cast<double>(mass.size()));
        return before * prompt + mean + gamma * (square - mean * mean);
    }
};
running_moments::config with(float gamma, std::uint32_t memory) {
    running_moments::config c;
    c.gamma = gamma, c.memory = memory;
    return c;
}
} // namespace

TEST_CASE("an entry is worth what is left of its prompt, and the moments of its attention since then") {
    for (const std::uint32_t memory : {1U, 4U, 32U})
        for (const float gamma : {0.0F, 200.0F})
            ranks_held_contract<running_moments>(with(gamma, memory), 1e-4, [&](std::uint32_t, double score) {
                return history{static_cast<double>(memory), static_cast<double>(gamma), score};
            });
}

TEST_CASE("the score of a prompt is that of mean_and_variance, and fades in decode") {
    const retention_suite::extents e{90, 64, 4, 4, 16};
    const auto c = with(200.0F, 8);
    const state_of<running_moments> s(c, e.limits(), {});
    const state_of<mean_and_variance> of_prompt({}, e.limits(), {});
    const lane<running_moments, float> x(e, 5);
    const lane<mean_and_variance, float> same(e, 5);
    CHECK(same_bits(x.score(s, 0.0F), same.score(of_prompt, 0.0F)));
    held_entry entry{0.5F, 3, 90};
    running_moments::record r;
    s.feed(entry, 0.0F, entry.score, r);
    CHECK(entry.score == doctest::Approx(0.5 * 7 / 8));
    s.feed(entry, 0.0F, entry.score, r);
    CHECK(entry.score == doctest::Approx(0.5 * 49 / 64));
}

TEST_CASE("a layer's preference has the kurtosis of the window's mean attention as a third factor") {
    const retention_suite::extents e{90, 64, 4, 4, 16};
    auto c = with(200.0F, 32);
    c.tau_entropy = 7.8F, c.tau_variance = 5.4F, c.tau_kurtosis = 2.5F;
    const state_of<running_moments> s(c, e.limits(), {});
    const state_of<mean_and_variance> two(c, e.limits(), {});
    layer_notes notes;
    double kurtosis = 0;
    for (const std::uint64_t seed : {5U, 6U}) { // two lanes
        const lane<running_moments, float> x(e, seed);
        static_cast<void>(x.score(s, 0.0F, &notes));
        ++notes.lanes;
        for (std::uint32_t g = 0; g < 4; ++g) {
            numbers mean(e.tokens, 0.0);
            for (std::uint32_t w = 0; w < x.observed(); ++w) {
                const numbers p = x.attention(w, g);
                for (std::size_t t = 0; t < p.size(); ++t) mean[t] += p[t] / x.observed();
            }
            const double n = x.end() - x.begin();
            double centre = 0, second = 0, fourth = 0;
            for (std::uint32_t t = x.begin(); t < x.end(); ++t) centre += mean[t] / n;
            for (std::uint32_t t = x.begin(); t < x.end(); ++t) {
                second += std::pow(mean[t] - centre, 2) / n;
                fourth += std::pow(mean[t] - centre, 4) / n;
            }
            kurtosis += fourth / (second * second) / 8;
        }
    }
    const double expected = static_cast<double>(two.preference(notes)) * std::pow(kurtosis, 1 / 2.5);
    CHECK(std::fabs(static_cast<double>(s.preference(notes)) / expected - 1.0) < 1e-4);
}

TEST_CASE("running_moments: settings that can never work are named") {
    using state = state_of<running_moments>;
    CHECK(state::check({}, {}).ok());
    check_refusal(state::check(with(200.0F, 0), {}), "retention.memory is 0");
    check_refusal(state::check(with(-1.0F, 8), {}), "retention.gamma is -1");
    auto c = with(200.0F, 8);
    c.tau_kurtosis = 0.0F;
    check_refusal(state::check(c, {}), "retention.tau_kurtosis is 0");
}

} // namespace retain_running_moments_test
