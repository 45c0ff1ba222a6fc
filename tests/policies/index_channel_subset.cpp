// channel_subset: scores are products in the query's largest channels, in f16 and in 8 bits.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_channel_subset.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

#include <numeric>

namespace index_channel_subset_test {

using namespace kvtl;

namespace {

using state = channel_subset::state;

double product(const float* q, const float* k, std::uint32_t dim, std::uint32_t read) {
    std::vector<std::uint32_t> order(dim);
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(),
              [q](std::uint32_t a, std::uint32_t b) { return std::fabs(q[a]) > std::fabs(q[b]); });
    double sum = 0, read_size = 0, size = 0;
    for (std::uint32_t j = 0; j < dim; ++j) {
        size += std::fabs(static_cast<double>(q[order[j]]));
        if (j >= read) continue;
        sum += static_cast<double>(q[order[j]]) * static_cast<double>(k[order[j]]);
        read_size += std::fabs(static_cast<double>(q[order[j]]));
    }
    return sum * std::sqrt(size / read_size);
}

void check(const channel_subset::config& c, double tolerance, const auto& bytes) {
    kvtl_test::summarising_index_contract<channel_subset>(
        [&](const summary_shape&) { return state(c, {}); }, tolerance, bytes,
        [&](const auto& x, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            return product(q, x.key(u, i, h), x.shape().dim, c.read);
        });
}

} // namespace

TEST_CASE("channel_subset") {
    static_assert(!scores_linearly<channel_subset>);
    const auto halves = [](const summary_shape& s) { return 2 * s.max_entries * s.width(); };
    const auto codes = [](const summary_shape& s) {
        return std::size_t{s.max_entries} * s.lane_heads * (s.dim + 4); // the suite's D are multiples of 4
    };
    check({.read = 5, .bits = 16}, 0x1p-11, halves);
    check({.read = 1000, .bits = 16}, 0x1p-11, halves);
    // Half a step of the largest key component, at most about 4.5 of keys around 1, in up to every channel.
    check({.read = 5, .bits = 8}, 0.05, codes);
    check({.read = 1000, .bits = 8}, 0.05, codes);
}

TEST_CASE("8 bits are exact for whole numbers up to 127, and a zero key is zero") {
    const state s({.read = 6, .bits = 8}, {});
    for (const std::uint32_t dim : {6U, 33U, 128U}) {
        const summary_shape shape{1, 1, dim, 1};
        CHECK(s.unit_bytes(shape) == 4 + (dim + 3) / 4 * 4);
        std::vector<float> unit(s.unit_bytes(shape) / 2), key(dim), q(dim), scratch(2 * dim), out(2);
        oracle::generator random(dim);
        for (float& k : key) k = static_cast<float>(random.below(255)) - 127.0F;
        key[dim / 2] = 127.0F;
        for (float& x : q) x = static_cast<float>(random.below(9)) - 4.0F;
        summary_view view{nullptr, reinterpret_cast<std::byte*>(unit.data()), s.unit_bytes(shape), shape};
        s.absorb(view, 0, 0, key.data(), nullptr);
        s.absorb(view, 1, 0, std::vector<float>(dim).data(), nullptr);
        units_view u;
        u.count = 2;
        u.max_entries = 1;
        u.summary = view;
        state({.read = dim, .bits = 8}, {}).score(q.data(), 1, u, out, scratch);
        CHECK(static_cast<double>(out[0]) == oracle::dot(q.data(), key.data(), dim));
        CHECK(out[1] == 0.0F);
    }
}

} // namespace index_channel_subset_test
