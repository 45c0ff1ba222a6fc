// window_attention: what the last queries pay, summed over the window, reduced over the group, pooled.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_window_attention.hpp>

#include "contracts/retention.hpp"

namespace retain_window_attention_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
template <over Group> numbers reduced(const auto& lane) {
    numbers sum(lane.size().tokens, 0.0);
    for (std::uint32_t w = 0; w < lane.observed(); ++w) {
        numbers of_query(sum.size(), 0.0);
        for (std::uint32_t g = 0; g < lane.size().group; ++g) {
            const numbers p = lane.attention(w, g);
            for (std::size_t t = 0; t < p.size(); ++t)
                of_query[t] =
                    Group == over::max ? std::max(of_query[t], p[t]) : of_query[t] + p[t] / lane.size().group;
        }
        for (std::size_t t = 0; t < sum.size(); ++t) sum[t] += of_query[t];
    }
    return sum;
}
template <over Group, pooling Pool> void contract() {
    for (const std::uint32_t width : {1U, 5U, 11U})
        ranks_prompts_contract<window_attention<Group, Pool, 7>>(
            {.pool_width = width}, 1e-5, [width](const auto& lane) {
                numbers sum = reduced<Group>(lane); // what the window pays to itself raises nobody
                std::fill(sum.begin() + lane.end(), sum.end(), 0.0);
                return pooled(sum, width, Pool);
            });
}
} // namespace

TEST_CASE("window_attention: mean or largest of the group, every pooling") {
    contract<over::mean, pooling::average>();
    contract<over::max, pooling::average>();
    contract<over::mean, pooling::maximum>();
    contract<over::max, pooling::maximum>();
    contract<over::mean, pooling::off>();
}

TEST_CASE("window_attention: the published width is the default; settings that can never work are named") {
    using score = window_attention<over::mean, pooling::average, 7, true>;
    CHECK(score::config{}.pool_width == 7);
    CHECK(score::per_query_head);
    check_refusal(state_of<score>::check({.pool_width = 6}, {}), "retention.pool_width is 6");
}

TEST_CASE("pooling: averages lose what lies behind the ends, maxima do not") {
    const std::vector<float> in = {4, 0, 0, 2, 2};
    std::vector<float> out(5);
    pool_scores<pooling::average>(in, 3, out);
    const std::vector<float> means = {4.0F / 3, 4.0F / 3, 2.0F / 3, 4.0F / 3, 4.0F / 3};
    CHECK(out == means);
    pool_scores<pooling::maximum>(in, 3, out);
    CHECK(out == std::vector<float>{4, 4, 2, 2, 2});
    pool_scores<pooling::maximum>(in, 99, out);
    CHECK(out == std::vector<float>(5, 4.0F));
    pool_scores<pooling::off>(in, 3, out);
    CHECK(out == in);
}

} // namespace retain_window_attention_test
