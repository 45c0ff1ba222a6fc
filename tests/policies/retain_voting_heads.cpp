// voting_heads: only the heads that vote say what the layer keeps.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_voting_heads.hpp>

#include "contracts/retention.hpp"

namespace retain_voting_heads_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

namespace {
using ext = retention_suite::extents;
/// What the voting heads of the lane pay, summed over the window and pooled.
numbers definition(const auto& lane, const std::vector<std::uint8_t>& votes, std::uint32_t width) {
    numbers sum(lane.size().tokens, 0.0);
    for (std::uint32_t g = 0; g < lane.size().group; ++g) {
        const std::size_t head =
            (std::size_t{ext::layer} * ext::kv_heads + ext::head) * lane.size().group + g;
        if (!votes.empty() && votes[head] == 0) continue;
        for (std::uint32_t w = 0; w < lane.observed(); ++w) {
            const numbers p = lane.attention(w, g);
            for (std::size_t t = 0; t < p.size(); ++t) sum[t] += p[t];
        }
    }
    std::fill(sum.begin() + lane.end(), sum.end(), 0.0); // the window's own
    return pooled(sum, width);
}
} // namespace

TEST_CASE("voting_heads: without a table every head votes") {
    ranks_prompts_contract<voting_heads>({.pool_width = 5}, 1e-5,
                                         [](const auto& lane) { return definition(lane, {}, 5); });
    CHECK(voting_heads::decides_together);
}

TEST_CASE(
    "voting_heads: with a table those that are marked, of the lane's own layer and head; it is copied") {
    const ext e{70, 64, 4, 2, 8};
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        std::vector<std::uint8_t> votes(ext::layers * ext::kv_heads * e.group, 0);
        oracle::generator random(seed);
        for (std::uint32_t l = 0; l < ext::layers; ++l)
            for (std::uint32_t i = 0; i < 3; ++i) votes[l * ext::kv_heads * e.group + random.below(8)] = 1;
        const std::vector<std::uint8_t> given = votes;
        const voting_heads::config c{.pool_width = 3, .votes = votes};
        REQUIRE(state_of<voting_heads>::check(c, e.limits()).ok());
        guarded_bytes memory(state_of<voting_heads>::bytes(c, e.limits()));
        const state_of<voting_heads> s(c, e.limits(), memory.memory());
        votes.assign(votes.size(), 1);
        const lane<voting_heads, float> x(e, seed);
        const auto got = x.score(s, NAN);
        const numbers exact = definition(x, given, 3);
        oracle::largest_error worst;
        for (std::uint32_t t = x.begin(); t < x.end(); ++t) worst.see(static_cast<double>(got[t]) - exact[t]);
        CHECK(worst.value() < 1e-5);
        CHECK(memory.intact());
    }
}

TEST_CASE("voting_heads: settings that can never work are named") {
    using state = state_of<voting_heads>;
    const ext e{70, 64, 4, 2, 8};
    const std::vector<std::uint8_t> few(23, 1);
    std::vector<std::uint8_t> silent(24, 1);
    std::fill_n(silent.begin() + 16, 8, std::uint8_t{0});
    check_refusal(state::check({.votes = few}, e.limits()), "retention.votes has 23 entries");
    check_refusal(state::check({.votes = silent}, e.limits()), "retention.votes: no head of layer 2 votes");
    check_refusal(state::check({.pool_width = 2}, e.limits()), "retention.pool_width is 2");
}

} // namespace retain_voting_heads_test
