// Exact proportional splits and the n-th best of scattered scores, against their definitions.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/support/budget_split.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <numeric>
#include <vector>

namespace budget_split_test {

TEST_CASE("split_exactly: exact, within caps, proportional") {
    oracle::generator random(9);
    for (int round = 0; round < 3000; ++round) {
        const std::size_t n = 1 + random.below(12);
        std::vector<double> weight(n);
        std::vector<std::uint32_t> cap(n), out(n);
        std::uint64_t room = 0;
        for (std::size_t i = 0; i < n; ++i) {
            weight[i] = random.below(5) == 0 ? 0.0 : std::exp(3.0 * random.normal());
            cap[i] = static_cast<std::uint32_t>(random.below(4) == 0 ? 0 : random.below(1000));
            room += cap[i];
        }
        const std::uint64_t total = random.below(3000);
        auto used = weight;
        kvtl::split_exactly(used, cap, total, out);
        CHECK(std::accumulate(out.begin(), out.end(), std::uint64_t{0}) == std::min(room, total));
        bool capped = true, fair = true;
        for (std::size_t i = 0; i < n; ++i) {
            capped = capped && out[i] <= cap[i];
            for (std::size_t j = 0; j < n; ++j) // who has room got at least its proportion
                if (weight[i] > 0 && weight[j] > 0 && out[i] < cap[i])
                    fair = fair && (out[i] + 1.001) / weight[i] >= (out[j] - 1.001) / weight[j];
        }
        CHECK(capped);
        CHECK(fair);
    }
}

TEST_CASE("split_exactly: weights that are no number, negative or without end lose or gain nothing") {
    constexpr double inf = std::numeric_limits<double>::infinity(),
                     nan = std::numeric_limits<double>::quiet_NaN(),
                     most = std::numeric_limits<double>::max();
    const auto split = [](std::vector<double> weight, std::vector<std::uint32_t> cap, std::uint64_t total) {
        kvtl::split_exactly(weight, cap, total, cap);
        return cap;
    };
    using shares = std::vector<std::uint32_t>;
    CHECK(split({nan, -3, 1, 1}, {9, 9, 9, 9}, 10) == shares{0, 0, 5, 5});
    CHECK(split({nan, -3, 0}, {9, 9, 9}, 9) == shares{3, 3, 3});
    CHECK(split({inf, inf, 1}, {9, 9, 9}, 8) == shares{4, 4, 0});
    CHECK(split({most, most, most}, {9, 9, 9}, 9) == shares{3, 3, 3});
    CHECK(split({inf, 1, 1}, {4, 9, 9}, 10) == shares{4, 3, 3});
    CHECK(split({}, {}, 10).empty());
    CHECK(split({1, 1}, {0, 0}, 10) == shares{0, 0});
}

TEST_CASE("rank_threshold finds where the best end, ties in order") {
    oracle::generator random(10);
    for (int round = 0; round < 300; ++round) {
        std::vector<float> s(1 + random.below(300));
        for (float& x : s) x = static_cast<float>(random.below(40)) - 20.0F;
        const std::size_t n = random.below(s.size() + 10);
        auto t = kvtl::rank_threshold(n, [&](auto&& f) {
            for (const float x : s) f(x);
        });
        std::vector<std::uint32_t> passed;
        for (std::uint32_t i = 0; i < s.size(); ++i)
            if (t.passes(s[i])) passed.push_back(i);
        auto best = oracle::top_k(s.data(), s.size(), n);
        std::sort(best.begin(), best.end());
        CHECK(passed == best);
    }
}

} // namespace budget_split_test
