// streaming_heads: the latest stay, and entries of heads that retrieve before all others.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_streaming_heads.hpp>

#include "contracts/retention.hpp"

namespace retain_streaming_heads_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {

/// Votes of one query head, for lanes of `group` query heads a KV head.
std::vector<std::uint8_t> vote_of(std::uint32_t group, std::uint32_t layer, std::uint32_t query_head) {
    std::vector<std::uint8_t> votes(std::size_t{extents::layers} * extents::kv_heads * group, 0);
    votes[(std::size_t{layer} * extents::kv_heads * group) + query_head] = 1;
    return votes;
}
std::vector<float> scores(const std::vector<std::uint8_t>& votes) {
    const extents e{50, 16, 3, 2, 8};
    std::vector<std::byte> memory(state_of<streaming_heads>::bytes({votes}, e.limits()));
    REQUIRE(state_of<streaming_heads>::check({votes}, e.limits()).ok());
    const state_of<streaming_heads> s({votes}, e.limits(), memory);
    return lane<streaming_heads, float>(e, 1).score(s, 0.0F);
}

} // namespace

TEST_CASE("streaming_heads: without a table every head retrieves") {
    ranks_prompts_contract<streaming_heads>({}, 1e-6, [](const auto& lane) {
        numbers score;
        for (std::uint32_t t = 0; t < lane.size().tokens; ++t)
            score.push_back(1 + (t + 1.0) / lane.size().tokens);
        return score;
    });
}

TEST_CASE("streaming_heads: a KV head retrieves if one of its query heads votes") {
    for (const std::uint32_t head : {3U, 4U, 5U}) // of KV head 1, which the lane is
        CHECK(scores(vote_of(3, extents::layer, head))[9] == 1.0F + 10.0F / 50.0F);
    CHECK(scores(vote_of(3, extents::layer, 2))[9] == 10.0F / 50.0F); // another head
    CHECK(scores(vote_of(3, 2, 4))[9] == 10.0F / 50.0F);              // another layer
    const auto latest = scores(vote_of(3, 0, 0));
    CHECK(std::is_sorted(latest.begin(), latest.end()));
    CHECK(latest.back() < scores({}).front());
}

TEST_CASE("streaming_heads: a table of another model is named") {
    check_refusal(
        state_of<streaming_heads>::check({std::vector<std::uint8_t>(5)}, extents{50, 16, 3}.limits()),
        "retention.votes has 5 entries; valid: layers * query_heads = 18");
}

} // namespace retain_streaming_heads_test
