// low_bit_keys: scores are those of the absorbed keys' codes, and near those of the keys themselves.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/index_low_bit_keys.hpp>

#include "contracts/index.hpp"

#include <doctest/doctest.h>

namespace index_low_bit_keys_test {

using namespace kvtl;

namespace {

template <std::size_t Bits> void check(std::size_t bits_of_group) {
    using policy = low_bit_keys<Bits>;
    double lost = 0, size = 0;
    kvtl_test::summarising_index_contract<policy>(
        [](const summary_shape&) { return typename policy::state(); }, 1e-6,
        [&](const summary_shape& s) {
            const std::size_t groups = (s.dim + 31) / 32;
            const std::size_t codes = (s.dim * bits_of_group + 7) / 8;
            return s.max_entries * s.lane_heads * (4 * groups + codes);
        },
        [&](const auto& lane, const float* q, std::uint32_t h, std::uint32_t u, std::uint32_t i) {
            const std::uint32_t dim = lane.shape().dim;
            const float* key = lane.key(u, i, h);
            std::vector<std::byte> row(1024);
            std::vector<float> back(dim);
            simd::packed_rows<Bits, true> rows{row.data(), 1, dim, row.size()};
            simd::pack_row(key, rows, row.data());
            simd::unpack_row(rows, 0, back.data());
            const double score = oracle::dot(q, back.data(), dim), exact = oracle::dot(q, key, dim);
            lost += (score - exact) * (score - exact), size += exact * exact;
            return score;
        });
    // Of uniform codes of normal numbers: about 0.12 of the energy with 2 bits, 0.01 with 4.
    CHECK(lost < (Bits == 2 ? 0.15 : 0.012) * size);
    CHECK(lost > 0);
}

} // namespace

TEST_CASE("low_bit_keys") {
    static_assert(scores_linearly<int2_keys>);
    check<2>(2);
    check<4>(4);
}

} // namespace index_low_bit_keys_test
