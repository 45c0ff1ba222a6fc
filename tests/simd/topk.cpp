// The k best scores against a stable sort, best first and by index: order, ties, NaN, and the inputs that make selections slow.
// SPDX-License-Identifier: MIT
#include <kvtl/simd/topk.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

namespace simd_topk_test {

namespace simd = kvtl::simd;

namespace {

void compare(const std::vector<float>& score, std::size_t k) {
    const std::size_t n = score.size();
    std::vector<std::uint32_t> out(k + 1, 0xABCDU);
    std::vector<std::uint64_t> scratch(simd::top_k_scratch(n, k)); // exactly what it asks for
    const std::size_t count = simd::top_k(score.data(), n, k, out.data(), scratch);
    const auto expected = oracle::top_k(score.data(), n, k);
    CAPTURE(n);
    CAPTURE(k);
    REQUIRE(count == expected.size());
    CHECK(out[k] == 0xABCDU);
    out.resize(count);
    CHECK(out == expected);

    std::vector<std::uint32_t> ascending(k + 1, 0xABCDU);
    REQUIRE(simd::top_k_by_index(score.data(), n, k, ascending.data(), scratch) == count);
    CHECK(ascending[k] == 0xABCDU);
    ascending.resize(count);
    std::sort(out.begin(), out.end());
    CHECK(ascending == out);
}

const std::vector<std::size_t> some_k = {0, 1, 2, 15, 64, 256, 300, 2000};

} // namespace

TEST_CASE("every small size") {
    for (std::size_t n = 0; n <= 130; ++n)
        for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 2, n, n + 5})
            compare(oracle::normal_values(n, n + k), k);
}

TEST_CASE("sizes around the buffer and the block") {
    for (const unsigned n : {511U, 512U, 513U, 577U, 1000U, 4097U, 32768U})
        for (const std::size_t k : some_k) compare(oracle::normal_values(n, n), k);
}

TEST_CASE("orders that are hard for a selection") {
    auto score = oracle::normal_values(20000, 1);
    std::sort(score.begin(), score.end());
    for (const std::size_t k : some_k) compare(score, k); // rising: every score passes the bar
    std::reverse(score.begin(), score.end());
    for (const std::size_t k : some_k) compare(score, k);
    for (std::size_t i = 0; i < score.size(); ++i)
        score[i] = static_cast<float>(std::min(i, score.size() - i)); // an organ pipe
    for (const std::size_t k : some_k) compare(score, k);
}

TEST_CASE("ties go to the lower index") {
    compare(std::vector<float>(5000, 1.5F), 300);
    auto score = oracle::normal_values(5000, 2);
    for (float& x : score) x = std::round(x); // a handful of values
    for (const std::size_t k : some_k) compare(score, k);
    const float zeros[] = {-0.0F, 0.0F, -0.0F, 0.0F};
    std::uint32_t out[4];
    std::uint64_t scratch[4];
    CHECK(simd::top_k(zeros, 4, 4, out, scratch) == 4);
    for (std::uint32_t i = 0; i < 4; ++i) CHECK(out[i] == i);
}

TEST_CASE("NaN is below everything, infinities are ordinary") {
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    oracle::generator random(3);
    for (const double share : {0.1, 0.95, 1.0}) {
        auto score = oracle::normal_values(5000, 4);
        for (float& x : score) {
            if (random.uniform() < share)
                x = random.below(2) == 0 ? nan : -nan;
            else if (random.uniform() < 0.2)
                x = random.below(2) == 0 ? inf : -inf;
        }
        for (const std::size_t k : some_k) compare(score, k);
    }
    compare(std::vector<float>(2000, -inf), 100);
    std::vector<float> late(3000, nan); // all real scores come after the buffer was filled with NaN
    for (std::size_t i = 2000; i < 3000; ++i) late[i] = i % 3 == 0 ? -inf : static_cast<float>(i % 7);
    for (const std::size_t k : some_k) compare(late, k);
}

TEST_CASE("subnormal scores keep their order") {
    std::vector<float> score(3000);
    oracle::generator random(8);
    for (float& x : score) x = static_cast<float>(random.below(2000)) * 1e-45F - 1e-42F;
    for (const std::size_t k : some_k) compare(score, k);
}

} // namespace simd_topk_test
