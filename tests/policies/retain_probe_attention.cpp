// probe_attention and replay_attention: what queries that stand for the future, or read the prompt again, pay to it.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_probe_attention.hpp>
#include <kvtl/policies/retain_replay_attention.hpp>

#include "contracts/retention.hpp"

namespace retain_probe_attention_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
template <over How> numbers reduced(const auto& lane) {
    if (How == over::mean) {
        numbers mean = sum_of_attention(lane);
        for (double& x : mean) x /= lane.observed() * lane.size().group;
        return mean;
    }
    numbers largest(lane.size().tokens, 0.0);
    for (std::uint32_t w = 0; w < lane.observed(); ++w)
        for (std::uint32_t g = 0; g < lane.size().group; ++g) {
            const numbers p = lane.attention(w, g);
            for (std::size_t t = 0; t < p.size(); ++t) largest[t] = std::max(largest[t], p[t]);
        }
    return largest;
}
template <over How, pooling Pool> void contract() {
    for (const std::uint32_t width : {1U, 7U})
        ranks_prompts_contract<probe_attention<How, Pool, 5>>(
            {.pool_width = width}, 1e-5, [width](const auto& lane) {
                numbers paid = reduced<How>(lane); // what the window receives raises nobody
                std::fill(paid.begin() + lane.end(), paid.end(), 0.0);
                return pooled(paid, width, Pool);
            });
}
} // namespace

TEST_CASE("probe_attention: mean or largest, then pooled") {
    contract<over::mean, pooling::average>();
    contract<over::max, pooling::average>();
    contract<over::mean, pooling::maximum>();
    contract<over::max, pooling::off>();
}

TEST_CASE("replay_attention: the largest over queries and group, and over all calls") {
    ranks_prompts_contract<replay_attention>({}, 1e-5,
                                             [](const auto& lane) { return reduced<over::max>(lane); });
    const extents e{.tokens = 40, .dim = 16, .group = 2};
    const state_of<replay_attention> s({}, e.limits(), {});
    const lane<replay_attention, float> x(e, 5);
    std::vector<float> logits(80), out(40, 0.03F);
    prompt_lane<float> p;
    const oracle::table<float> keys(40, 16, 16, 5, 1.0);
    const std::vector<float> q(32, 0.5F);
    p.keys = keys.view(), p.queries = q.data(), p.query_stride = 32, p.observed = 1, p.group = 2;
    p.causal = false, p.logit = 0.25F, p.logits = logits;
    s.score(p, std::span(out).first(30)); // the last ten tokens pass
    numbers exact(40);
    double sum = 0;
    for (std::size_t t = 0; t < 40; ++t) sum += exact[t] = std::exp(oracle::dot(q.data(), keys.view().row(t), 16) / 4);
    std::size_t raised = 0;
    for (std::size_t t = 0; t < 30; ++t) {
        CHECK(std::fabs(static_cast<double>(out[t]) - std::max(0.03, exact[t] / sum)) < 1e-6);
        raised += exact[t] / sum > 0.03 ? 1 : 0;
    }
    CHECK(raised > 3);
    CHECK(raised < 27);
    CHECK(std::all_of(out.begin() + 30, out.end(), [](float f) { return f == 0.03F; }));
}

TEST_CASE("probe_attention: settings that can never work are named") {
    using state = state_of<probe_attention<over::mean, pooling::average, 5>>;
    CHECK(probe_attention<over::mean, pooling::average, 5>::config{}.pool_width == 5);
    check_refusal(state::check({.pool_width = 0}, {}), "retention.pool_width is 0");
    check_refusal(state::check({.pool_width = 1025}, {}), "retention.pool_width is 1025");
}

} // namespace retain_probe_attention_test
