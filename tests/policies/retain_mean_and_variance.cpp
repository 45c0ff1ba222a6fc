// mean_and_variance: the window's attention and how much it changes; how widely and restlessly a layer
// attends. SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_mean_and_variance.hpp>

#include "contracts/retention.hpp"

namespace retain_mean_and_variance_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
struct moments {
    numbers mean, variance;
};
/// Of one query head over the window.
template <class Lane> moments over_window(const Lane& lane, std::uint32_t g) {
    moments m{numbers(lane.size().tokens, 0.0), numbers(lane.size().tokens, 0.0)};
    for (std::uint32_t w = 0; w < lane.observed(); ++w) {
        const numbers p = lane.attention(w, g);
        for (std::size_t t = 0; t < p.size(); ++t) m.mean[t] += p[t] / lane.observed();
    }
    for (std::uint32_t w = 0; w < lane.observed(); ++w) {
        const numbers p = lane.attention(w, g);
        for (std::size_t t = 0; t < p.size(); ++t)
            m.variance[t] += (p[t] - m.mean[t]) * (p[t] - m.mean[t]) / lane.observed();
    }
    return m;
}
} // namespace

TEST_CASE("mean_and_variance: pooled mean plus gamma times variance, averaged over the group") {
    for (const float gamma : {0.0F, 200.0F})
        for (const std::uint32_t width : {1U, 5U})
            ranks_prompts_contract<mean_and_variance>(
                {.gamma = gamma, .pool_width = width}, 2e-4, [&](const auto& lane) {
                    numbers score(lane.size().tokens, 0.0);
                    for (std::uint32_t g = 0; g < lane.size().group; ++g) {
                        const moments m = over_window(lane, g);
                        numbers one = m.mean;
                        for (std::size_t t = 0; t < one.size(); ++t)
                            one[t] += static_cast<double>(gamma) * m.variance[t];
                        std::fill(one.begin() + lane.end(), one.end(), 0.0); // the window's own
                        one = pooled(one, width);
                        for (std::size_t t = 0; t < one.size(); ++t) score[t] += one[t] / lane.size().group;
                    }
                    return score;
                });
}

TEST_CASE("mean_and_variance: a layer's preference is entropy of queries times variance of what competes, "
          "each with "
          "its power") {
    const retention_suite::extents e{90, 64, 4, 4, 16};
    for (const float tau : {1.0F, 0.4F, 2.3F}) {
        const state_of<mean_and_variance> s({.tau_entropy = tau, .tau_variance = 2 * tau}, e.limits(), {});
        layer_notes notes;
        double entropy = 0, variance = 0;
        for (const std::uint64_t seed : {5U, 6U}) { // two lanes
            const lane<mean_and_variance, float> x(e, seed);
            static_cast<void>(x.score(s, 0.0F, &notes));
            ++notes.lanes;
            for (std::uint32_t g = 0; g < 4; ++g) {
                const moments m = over_window(x, g);
                for (std::uint32_t t = x.begin(); t < x.end(); ++t) variance += m.variance[t] / 8;
                for (std::uint32_t w = 0; w < x.observed(); ++w) {
                    const numbers p = x.attention(w, g);
                    for (std::uint32_t t = x.begin(); t < x.end(); ++t)
                        entropy -= p[t] * std::log(p[t]) / (8 * x.observed());
                }
            }
        }
        const auto power = [](double x, double tau_of) { return std::pow(x, 1.0 / tau_of); };
        const double expected =
            power(entropy, static_cast<double>(tau)) * power(variance, 2.0 * static_cast<double>(tau));
        CHECK(std::fabs(static_cast<double>(s.preference(notes)) / expected - 1.0) < 1e-3);
    }
}

TEST_CASE("mean_and_variance: settings that can never work are named") {
    using state = state_of<mean_and_variance>;
    CHECK(state::check({}, {}).ok());
    check_refusal(state::check({.gamma = -1.0F}, {}), "retention.gamma is -1");
    check_refusal(state::check({.pool_width = 4}, {}), "retention.pool_width is 4");
    check_refusal(state::check({.tau_entropy = 0.0F}, {}),
                  "retention.tau_entropy and tau_variance are 0 and 1");
    check_refusal(state::check({.tau_variance = NAN}, {}),
                  "retention.tau_entropy and tau_variance are 1 and");
}

} // namespace retain_mean_and_variance_test
