// probe_attention and replay_attention: what queries that stand for the future, or read the prompt again, pay to it.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_probe_attention.hpp>
#include <kvtl/policies/retain_replay_attention.hpp>

#include "contracts/retention.hpp"

#include <type_traits>

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

TEST_CASE("replay_attention and replay_loss: the largest over queries and group") {
    ranks_prompts_contract<replay_attention>({}, 1e-5,
                                             [](const auto& lane) { return reduced<over::max>(lane); });
    ranks_prompts_contract<replay_loss>({}, 1e-5, [](const auto& lane) {
        numbers largest = reduced<over::max>(lane); // the lane has no inputs
        for (std::uint32_t t = 0; t < lane.size().tokens; ++t) {
            double size = 0;
            for (std::uint32_t d = 0; d < lane.size().dim; ++d) size += std::fabs(lane.value(t, d));
            largest[t] *= size;
        }
        return largest;
    });
}

namespace {
/// Two queries, of which the second sees one token more, and ten tokens that pass. Scores are raised, those of what passes
/// are not read.
template <class Score> void raises_scores() {
    constexpr std::size_t dim = 16, tokens = 40, scored = 30;
    const oracle::table<float> keys(tokens, dim, dim, 5, 1.0), values(tokens, dim, dim, 6, 1.0),
        inputs(2, 24, 24, 7, 1.0), queries(4, dim, dim, 8, 0.7);
    constexpr bool weighed = std::is_same_v<Score, replay_loss>;
    const float before = weighed ? 0.1F : 0.03F;
    std::vector<float> logits(2 * tokens), spare(tokens), out(tokens, before);
    prompt_lane<float> p;
    p.keys = keys.view(), p.values = values.view();
    p.queries = queries.view().row(0), p.query_stride = 2 * dim, p.observed = 2, p.group = 2;
    p.logit = 0.25F, p.logits = logits, p.spare = spare;
    p.inputs = {inputs.view().row(0), 48};
    const state_of<Score> s({}, {}, {});
    s.score(p, std::span(out).first(scored));
    std::size_t raised = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
        double expected = static_cast<double>(before);
        for (std::size_t row = 0; row < 4 && t < scored; ++row) {
            const std::size_t w = row / 2, seen = tokens - 1 + w;
            double sum = 0, size = 0;
            const auto weight = [&](std::size_t i) {
                return std::exp(oracle::dot(queries.view().row(row), keys.view().row(i), dim) / 4);
            };
            for (std::size_t i = 0; i < seen; ++i) sum += weight(i);
            for (std::size_t d = 0; d < dim; ++d)
                size += std::fabs(static_cast<double>(values.view().row(t)[d]));
            const float* x = inputs.view().row(w);
            const double share = weighed ? size / std::sqrt(oracle::dot(x, x, 24)) : 1;
            expected = std::max(expected, weight(t) / sum * share);
        }
        CHECK(std::fabs(static_cast<double>(out[t]) - expected) < 1e-6);
        raised += out[t] > before ? 1 : 0;
    }
    CHECK(raised > 3);
    CHECK(raised < 27);
}
} // namespace

TEST_CASE("replay_attention and replay_loss: a further chunk raises scores, and tokens that pass have none") {
    raises_scores<replay_attention>();
    raises_scores<replay_loss>();
}

TEST_CASE("probe_attention: settings that can never work are named") {
    using state = state_of<probe_attention<over::mean, pooling::average, 5>>;
    CHECK(probe_attention<over::mean, pooling::average, 5>::config{}.pool_width == 5);
    check_refusal(state::check({.pool_width = 0}, {}), "retention.pool_width is 0");
    check_refusal(state::check({.pool_width = 1025}, {}), "retention.pool_width is 1025");
}

} // namespace retain_probe_attention_test
