// probe_attention: what queries that stand for the future pay to the whole prompt.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_probe_attention.hpp>

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

TEST_CASE("probe_attention: settings that can never work are named") {
    using state = state_of<probe_attention<over::mean, pooling::average, 5>>;
    CHECK(probe_attention<over::mean, pooling::average, 5>::config{}.pool_width == 5);
    check_refusal(state::check({.pool_width = 0}, {}), "retention.pool_width is 0");
    check_refusal(state::check({.pool_width = 1025}, {}), "retention.pool_width is 1025");
}

} // namespace retain_probe_attention_test
