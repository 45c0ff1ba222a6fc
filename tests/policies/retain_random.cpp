// random_score: numbers that know nothing of the entry, the same whenever they are asked for.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/retain_random.hpp>

#include "contracts/retention.hpp"

namespace retain_random_test {

using namespace kvtl;
using namespace kvtl_test;
using namespace kvtl_test::retention_suite;

TEST_CASE("random_score: a number for every layer, head and token, in any order") {
    for (const std::uint64_t seed : {1U, 77U})
        ranks_arrivals_contract<random_score>(
            {.seed = seed}, 0.0, [seed](const arriving& a, std::uint32_t head) {
                return static_cast<double>(state_of<random_score>::draw(
                    seed, (std::uint64_t{a.layer} << 48) ^ (std::uint64_t{head} << 32) ^ a.token));
            });
    struct stays {
        double score;
        [[nodiscard]] double worth(std::uint32_t) const { return score; }
    };
    ranks_held_contract<random_score>({}, 0.0, [](std::uint32_t, double score) { return stays{score}; });
}

TEST_CASE("random_after_prompt: the same draws, those of the prompt above all others") {
    const auto draw = [](const arriving& a, std::uint32_t head) {
        return static_cast<double>(state_of<random_score>::draw(
            1, (std::uint64_t{a.layer} << 48) ^ (std::uint64_t{head} << 32) ^ a.token));
    };
    ranks_arrivals_contract<random_after_prompt>(
        {}, 1e-7, [&](const arriving& a, std::uint32_t head) { return 1.0 + draw(a, head); });
    const state_of<random_after_prompt> s({}, arrivals::limits(), {});
    const arrivals in;
    arriving a = in.at(2, 7);
    a.decoded = true;
    std::vector<float> out(arrivals::kv_heads);
    s.arrive(a, out);
    for (std::uint32_t h = 0; h < arrivals::kv_heads; ++h) CHECK(static_cast<double>(out[h]) == draw(a, h));
}

TEST_CASE("random_score: uniform in [0, 1), and unlike in neighbouring tokens, heads, layers and seeds") {
    using state = state_of<random_score>;
    constexpr int n = 20000;
    const auto stream = [](std::uint64_t seed, std::uint64_t first, std::uint64_t step) {
        numbers x;
        for (std::uint64_t i = 0; i < n; ++i)
            x.push_back(static_cast<double>(state::draw(seed, first + i * step)));
        return x;
    };
    const numbers tokens = stream(1, 0, 1);
    for (const numbers& x :
         {tokens, stream(1, 5, std::uint64_t{1} << 32), stream(1, 5, std::uint64_t{1} << 48)}) {
        int tenths[10] = {};
        for (const double u : x) {
            REQUIRE((u >= 0.0 && u < 1.0));
            ++tenths[static_cast<int>(u * 10)];
        }
        for (const int count : tenths) CHECK(std::abs(count - n / 10) < 5 * 43); // 43: a standard deviation
    }
    const auto correlation = [&](const numbers& a, const numbers& b) {
        double sum = 0;
        for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - 0.5) * (b[i] - 0.5) * 12 / n;
        return std::fabs(sum);
    };
    CHECK(correlation(tokens, tokens) > 0.9);
    for (const numbers& other : {stream(2, 0, 1), stream(1, 1, 1), stream(1, std::uint64_t{1} << 32, 1),
                                 stream(1, std::uint64_t{1} << 48, 1)})
        CHECK(correlation(tokens, other) < 5 / std::sqrt(static_cast<double>(n)));
}

} // namespace retain_random_test
