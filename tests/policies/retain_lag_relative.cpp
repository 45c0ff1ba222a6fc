// lag_relative: ranks by how much an entry stands out against the block behind it.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_lag_relative.hpp>

#include "contracts/retention.hpp"

namespace retain_lag_relative_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
/// The score by definition, in plain loops: the tail before every rank, the latest first.
template <class Lane> numbers definition(const Lane& lane, std::uint32_t lag) {
    const auto [tokens, dim, group, sinks, window] = lane.size();
    numbers score;
    for (std::uint32_t t = 0; t < tokens; ++t) score.push_back(1.0 + t);
    const std::uint32_t first_sinks = std::min(tokens, sinks), blocks = (tokens - first_sinks) / lag;
    for (std::uint32_t b = 0; b + 1 < blocks; ++b) {
        const std::uint32_t first = first_sinks + b * lag;
        numbers sum(lag, 0.0);
        for (const bool keys : {true, false}) {
            const auto x = [&](std::uint32_t t, std::uint32_t d) {
                return keys ? lane.key(t, d) : lane.value(t, d);
            };
            numbers deviation;
            for (std::uint32_t i = 0; i < lag; ++i) {
                numbers place;
                for (std::uint32_t d = 0; d < dim; ++d) {
                    double low = 1e300, high = -1e300;
                    for (std::uint32_t j = 0; j < lag; ++j) {
                        low = std::min(low, x(first + lag + j, d));
                        high = std::max(high, x(first + lag + j, d));
                    }
                    place.push_back(high > low ? (x(first + i, d) - low) / (high - low) : 0.0);
                }
                double mean = 0, variance = 0;
                for (const double p : place) mean += p / dim;
                for (const double p : place) variance += (p - mean) * (p - mean) / dim;
                deviation.push_back(std::sqrt(variance));
            }
            double all = 0;
            for (const double d : deviation) all += std::exp(d);
            for (std::uint32_t i = 0; i < lag; ++i) sum[i] += std::exp(deviation[i]) / all;
        }
        for (std::uint32_t i = 0; i < lag; ++i)
            score[first + i] = static_cast<double>(std::count_if(sum.begin(), sum.end(),
                                                                 [&](double s) { return s < sum[i]; })) /
                               lag;
    }
    return score;
}
} // namespace

TEST_CASE("lag_relative") {
    for (const std::uint32_t lag : {3U, 8U, 128U})
        ranks_prompts_contract<lag_relative>({.lag = lag}, 1e-6, [lag](const auto& lane) {
            const score_limits l = lane.size().limits(); // a block has a quarter of the budget at most
            return definition(lane, std::min(lag, std::max(2U, (l.keep - l.sinks) / 4)));
        });
    for (const std::uint32_t lag : {8U, 16U, 32U}) { // with room for the lag that was asked for
        const retention_suite::extents e{300, 40, 2, 4, 8};
        score_limits limits = e.limits();
        limits.keep = 4 + 4 * lag;
        const lane<lag_relative, float> x(e, lag);
        const auto score = x.score(state_of<lag_relative>({.lag = 100}, limits, {}), 0.0F);
        const numbers exact = definition(x, lag);
        for (std::uint32_t t = 4; t < 292; ++t)
            CHECK(std::fabs(static_cast<double>(score[t]) - exact[t]) < 1e-6);
    }
}

TEST_CASE("lag_relative: what has no next block comes before every rank, the latest first") {
    const retention_suite::extents e{40, 16, 1, 4, 1};
    score_limits limits = e.limits();
    limits.keep = 36;
    const state_of<lag_relative> s({.lag = 8}, limits, {});
    const auto score = lane<lag_relative, float>(e, 1).score(s, 0.0F);
    for (std::uint32_t t = 4; t < 28; ++t)
        CHECK(score[t] < 1.0F); // three blocks; the fourth and four entries follow
    for (std::uint32_t t = 28; t < 40; ++t) CHECK((score[t] >= 1.0F && (t == 28 || score[t] > score[t - 1])));
    // A block less than two: nothing can be ranked.
    const retention_suite::extents few{19, 16, 1, 4, 1};
    const auto latest = lane<lag_relative, float>(few, 1).score(s, 0.0F);
    for (std::uint32_t t = 5; t < 19; ++t) CHECK((latest[t - 1] >= 1.0F && latest[t] > latest[t - 1]));
}

TEST_CASE("lag_relative: the tail takes at most half of the budget, however small that is") {
    for (const std::uint32_t keep : {20U, 64U, 128U, 256U, 600U}) {
        const retention_suite::extents e{1500, 8, 1, 4, 8};
        score_limits limits = e.limits();
        limits.keep = keep;
        const auto score =
            lane<lag_relative, float>(e, 1).score(state_of<lag_relative>({}, limits, {}), 0.0F);
        const auto tail = std::count_if(score.begin() + 4, score.end(), [](float x) { return x >= 1.0F; });
        CHECK(2 * tail <= keep - 4);
        CHECK(tail >= (keep >= 516 ? 128 : (keep - 4) / 4));
    }
}

TEST_CASE("lag_relative: settings that can never work are named") {
    check_refusal(state_of<lag_relative>::check({.lag = 1}, {}), "retention.lag is 1");
}

} // namespace retain_lag_relative_test
