// frequency_pairs: scores are products in the chosen pairs, chosen by calibration or by how the keys vary;
// all pairs are exact.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_frequency_pairs.hpp>

#include "contracts/index.hpp"
#include "support/calibrated.hpp"

#include <doctest/doctest.h>

namespace index_frequency_pairs_test {

using namespace kvtl;

namespace {

using state = frequency_pairs::state;
using lane = kvtl_test::index_suite::lane<frequency_pairs>;

double product(std::span<const std::uint32_t> pairs, std::uint32_t distance, const float* q, const float* k) {
    double sum = 0;
    for (const std::uint32_t p : pairs) {
        const std::uint32_t a = distance == 1 ? 2 * p : p, b = distance == 1 ? 2 * p + 1 : p + distance;
        sum += static_cast<double>(q[a]) * static_cast<double>(k[a]) +
               static_cast<double>(q[b]) * static_cast<double>(k[b]);
    }
    return sum;
}

} // namespace

TEST_CASE("frequency_pairs") {
    static_assert(scores_linearly<frequency_pairs> && fits_first_keys<frequency_pairs>);
    for (const std::uint32_t distance : {0U, 1U})
        for (const std::uint32_t n : {3U, 20U, 1000U}) {
            const state s({.pairs = n, .pair_distance = distance}, {});
            kvtl_test::summarising_index_contract<frequency_pairs>(
                [&](const summary_shape&) { return s; }, 0x1p-11,
                [&](const summary_shape& shape) {
                    return std::size_t{4} * shape.max_entries * shape.lane_heads * std::min(n, shape.dim / 2);
                },
                [&](auto& x, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
                    if (n == 1000) return oracle::dot(q, x.key(u, i, h), x.shape().dim);
                    return product(s.pairs_of(x.view(), h), distance == 1 ? 1 : x.shape().dim / 2, q,
                                   x.key(u, i, h));
                });
        }
}

TEST_CASE("without calibration the pairs that vary most are chosen, constant ones never") {
    constexpr std::uint32_t dim = 16, tokens = 50;
    for (const std::uint32_t distance : {1U, 8U}) {
        const state s({.pairs = 3, .pair_distance = distance}, {});
        std::vector<float> keys = oracle::normal_values<float>(2 * dim * tokens, 5, 0.01);
        const auto widen = [&](std::uint32_t head, std::uint32_t pair, bool second, float by) {
            const auto [a, b] = pair_elements(pair, distance);
            for (std::uint32_t t = 0; t < tokens; ++t) keys[(t * 2 + head) * dim + (second ? b : a)] *= by;
        };
        widen(0, 6, false, 90.0F), widen(0, 1, true, 60.0F), widen(0, 3, true, 30.0F);
        widen(1, 0, true, 30.0F), widen(1, 2, false, 90.0F), widen(1, 7, true, 60.0F);
        for (std::uint32_t t = 0; t < tokens; ++t)
            keys[t * 2 * dim + pair_elements(5, distance).first] += 100.0F;
        lane x(s, {{2, 1, dim, 1}, 4, true}, 1);
        std::vector<float> scratch(s.fit_scratch_bytes(x.shape(), tokens) / sizeof(float));
        s.fit(x.view(), kvtl::rows_view<float>{keys.data(), tokens, 2 * dim, 2 * dim},
              std::as_writable_bytes(std::span(scratch)));
        const auto of = [&](std::uint32_t h) {
            const auto p = s.pairs_of(x.view(), h);
            return std::vector<std::uint32_t>(p.begin(), p.end());
        };
        CHECK(of(0) == std::vector<std::uint32_t>{6, 1, 3});
        CHECK(of(1) == std::vector<std::uint32_t>{2, 7, 0});
    }
}

TEST_CASE("calibration names the pairs of each layer and head") {
    const shape model{2, 4, 2, 16};
    const kvtl_test::calibrated c(model, 4, {0, 1, 2, 3, 4, 5, 6, 7, 7, 3, 1, 0, 2, 4, 6, 5}, 8);
    state s({.pairs = 3}, {});
    s.bind(c.view());
    lane x(s, {{2, 2, 16, 2}, 6, true}, 3);
    x.absorb_all(); // layer 1
    for (std::uint32_t h = 0; h < 2; ++h) {
        const std::vector<std::uint32_t> pairs =
            h == 0 ? std::vector<std::uint32_t>{7, 3, 1} : std::vector<std::uint32_t>{2, 4, 6};
        const auto q = oracle::normal_values<float>(32, 4 + h);
        const auto got = x.score(q, 2, h);
        for (std::uint32_t g = 0; g < 2; ++g)
            for (std::uint32_t i = 0; i < 12; ++i)
                CHECK(std::fabs(static_cast<double>(got[g * 12 + i]) -
                                product(pairs, 8, &q[g * 16], x.key(i / 2, i % 2, h))) < 0.01);
    }
}

TEST_CASE("a lane without a prompt spreads its pairs evenly") {
    const state s({.pairs = 4}, {});
    lane x(s, {{1, 1, 32, 1}, 2, true}, 3);
    x.absorb_all();
    const auto p = s.pairs_of(x.view(), 0);
    CHECK(std::vector<std::uint32_t>(p.begin(), p.end()) == std::vector<std::uint32_t>{0, 4, 8, 12});
}

} // namespace index_frequency_pairs_test
