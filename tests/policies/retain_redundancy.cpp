// redundancy against its definition, with the matrix of cosines written out.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_redundancy.hpp>

#include "contracts/retention.hpp"

namespace retain_redundancy_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {

/// lambda * attention - (1 - lambda) * redundancy, by token. `left_out`: how many cosines were.
numbers definition(const auto& lane, double lambda, double similar, std::uint32_t width,
                   std::size_t* left_out = nullptr) {
    const std::uint32_t tokens = lane.size().tokens, dim = lane.size().dim;
    numbers cosine(std::size_t{tokens} * tokens, 0.0), norm(tokens);
    for (std::uint32_t t = 0; t < tokens; ++t) norm[t] = lane.key_norm(t);
    for (std::uint32_t j = 0; j < tokens; ++j)
        for (std::uint32_t i = 0; i < tokens; ++i) {
            if (i == j) continue;
            for (std::uint32_t d = 0; d < dim; ++d)
                cosine[j * tokens + i] += lane.key(i, d) * lane.key(j, d) / norm[i] / norm[j];
        }
    for (std::uint32_t j = 0; j < tokens; ++j)
        for (std::uint32_t i = tokens; i-- > 0;)
            if (cosine[j * tokens + i] > similar) {
                cosine[j * tokens + i] = 0;
                if (left_out != nullptr) ++*left_out;
                break;
            }
    numbers redundant(tokens, 0.0);
    double sum = 0;
    for (std::uint32_t i = 0; i < tokens; ++i) {
        for (std::uint32_t j = 0; j < tokens; ++j) redundant[i] += cosine[j * tokens + i] / tokens;
        sum += redundant[i] = std::exp(redundant[i]);
    }
    const std::uint32_t before = lane.end();
    numbers paid(before, 0.0), score(tokens, 0.0);
    for (std::uint32_t w = 0; w < lane.observed(); ++w) {
        numbers logit(before, -1e300);
        double all = 0;
        for (std::uint32_t t = 0; t < before; ++t) {
            for (std::uint32_t g = 0; g < lane.size().group; ++g) {
                double dot = 0;
                for (std::uint32_t d = 0; d < dim; ++d) dot += lane.query(w, g, d) * lane.key(t, d);
                logit[t] = std::max(logit[t], dot / std::sqrt(static_cast<double>(dim)));
            }
            all += std::exp(logit[t]);
        }
        for (std::uint32_t t = 0; t < before; ++t) paid[t] += std::exp(logit[t]) / all / lane.observed();
    }
    const numbers attention = pooled(paid, width, pooling::maximum);
    for (std::uint32_t t = 0; t < before; ++t)
        score[t] = lambda * attention[t] - (1 - lambda) * redundant[t] / sum;
    return score;
}

} // namespace

TEST_CASE("redundancy: attention less likeness to other keys") {
    for (const float lambda : {0.0F, 0.1F, 1.0F})
        for (const float similar : {0.1F, 0.5F})
            ranks_prompts_contract<redundancy>(
                {.lambda = lambda, .similar = similar}, 2e-5, [&](const auto& lane) {
                    return definition(lane, static_cast<double>(lambda), static_cast<double>(similar), 7);
                });
}

TEST_CASE("redundancy: of three equal keys the latest is the best") {
    // The definition leaves cosines out at all, so that the case above tests it.
    std::size_t left_out = 0;
    static_cast<void>(
        definition(retention_suite::lane<redundancy, float>({131, 8, 1, 0, 1}, 1), 0.1, 0.5, 7, &left_out));
    CHECK(left_out > 100);
    std::vector<float> keys(std::size_t{20} * 16), queries(std::size_t{8} * 16);
    oracle::generator random(5);
    for (float& x : keys) x = static_cast<float>(random.normal());
    for (const std::size_t equal : {6U, 9U}) std::copy_n(&keys[std::size_t{3} * 16], 16, &keys[equal * 16]);
    std::vector<float> logits(20), spare(40), out(20, 0.0F), memory(16);
    prompt_lane<float> lane;
    lane.keys = {keys.data(), 20, 16, 16}, lane.values = lane.keys;
    lane.window = 8, lane.observed = 8, lane.queries = queries.data(), lane.query_stride = 16;
    lane.logit = 1.0F, lane.logits = logits, lane.spare = spare;
    const score_limits limits{1, 1, 1, 16, 0, 8, 12, 20};
    const state_of<redundancy> s({.lambda = 0.0F}, limits, std::as_writable_bytes(std::span(memory)));
    s.score(lane, out);
    CHECK(out[9] > out[3]);
    CHECK(out[9] > out[6]);
}

TEST_CASE("redundancy: settings that can never work are named") {
    using state = state_of<redundancy>;
    CHECK(state::check({}, {}).ok());
    check_refusal(state::check({.lambda = -0.1F}, {}), "retention.lambda is -0.1");
    check_refusal(state::check({.lambda = NAN}, {}), "retention.lambda is");
    check_refusal(state::check({.similar = 1.5F}, {}), "retention.similar is 1.5");
    check_refusal(state::check({.pool_width = 4}, {}), "retention.pool_width is 4");
}

} // namespace retain_redundancy_test
