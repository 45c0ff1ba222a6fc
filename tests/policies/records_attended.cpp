// Attention over records by record_attention, where it takes another way than block by block: rotated records, whose queries
// and sums are rotated once, and relaxed products. Against attention over the decoded rows in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/core/step/attend_records.hpp>
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_int_group.hpp>
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/policies/compress_rotated.hpp>

#include "support/oracle.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace records_attended_test {

using namespace kvtl;

namespace {

/// The largest error of attention over `count` records of head 1 of two by the queries of `mask`, in two calls; queries
/// without a bit must see nothing.
template <class Codec>
double error_of(const logit_rule& rule, std::uint32_t dim, std::uint32_t group, std::uint32_t count,
                std::uint64_t mask) {
    using plain = typename Codec::plain_type;
    const record_shape shape{2, dim};
    const typename Codec::state codec({}, shape);
    const auto k = oracle::normal_values<plain>(count * shape.width(), 1),
               v = oracle::normal_values<plain>(count * shape.width(), 2);
    const auto q = oracle::normal_values(group * (dim + 3), 3);
    const auto bias = oracle::normal_values(count, 4);
    const std::size_t key = codec.bytes().key, value = codec.bytes().value;
    std::vector<std::byte> keys(count * key), values(count * value);
    for (std::uint32_t i = 0; i < count; ++i) {
        static_cast<void>(codec.encode_key(&k[i * shape.width()], i, &keys[i * key]));
        static_cast<void>(codec.encode_value(&v[i * shape.width()], &values[i * value]));
    }
    const records_view of_keys{keys.data(), count, key}, of_values{values.data(), count, value};
    std::vector<plain> decoded_k(k.size()), decoded_v(v.size());
    codec.decode_keys(of_keys, decoded_k.data());
    codec.decode_values(of_values, decoded_v.data());

    std::vector<float> memory(partial_floats(group, dim)), scratch(simd::attend_scratch_floats(group));
    const partial p = partial_at(memory.data(), group, dim);
    reset(p);
    const std::uint32_t first = count / 3;
    for (const auto& [from, n] : {std::pair{0U, first}, {first, count - first}})
        record_attention<typename Codec::state>(codec, {q.data(), dim + 3, rule, 1}, of_keys.slice(from, n),
                                                of_values.slice(from, n))
            .attend(bias.data() + from, p, scratch, mask);
    std::vector<float> out(group * dim);
    finish(p, out.data(), dim);
    double worst = 0;
    for (std::uint32_t g = 0; g < group; ++g) {
        if ((mask >> g & 1) == 0) {
            CHECK(p.max[g] == -std::numeric_limits<float>::infinity());
            continue;
        }
        const auto exact =
            oracle::attend(&q[g * (dim + 3)], oracle::value(rule.scale),
                           rows_view<plain>{decoded_k.data() + dim, count, dim, shape.width()},
                           rows_view<plain>{decoded_v.data() + dim, count, dim, shape.width()}, bias.data());
        for (std::uint32_t d = 0; d < dim; ++d)
            worst = std::max(worst, std::fabs(static_cast<double>(out[g * dim + d]) - exact[d]));
    }
    return worst;
}

constexpr std::uint64_t masks[] = {~std::uint64_t{0}, 0x1, 0x50, 0x2F6};

} // namespace

TEST_CASE("rotated records: queries and sums are rotated once, for any group and mask") {
    for (const std::uint32_t dim : {8U, 64U, 80U, 128U})
        for (const std::uint32_t group : {1U, 4U, 10U})
            for (const std::uint64_t mask : masks)
                for (const std::uint32_t count : {3U, 100U}) {
                    CHECK(error_of<rotated<int4_group<float>, float>>({0.3F}, dim, group, count, mask) <
                          2e-5);
                    CHECK(error_of<rotated<int8_row<float>, float>>({0.3F}, dim, group, count, mask) < 2e-5);
                }
}

TEST_CASE("relaxed products of bf16 rows and of signed bytes") {
    double bytes = 0, rows = 0;
    for (const std::uint32_t dim : {64U, 128U})
        for (const std::uint32_t group : {1U, 4U, 10U})
            for (const std::uint64_t mask : masks)
                for (const std::uint32_t count : {3U, 100U}) {
                    const float scale = 1 / std::sqrt(static_cast<float>(dim));
                    bytes =
                        std::max(bytes, error_of<int8_row<float>>({scale, 0, true}, dim, group, count, mask));
                    rows = std::max(rows, error_of<raw<bf16>>({scale, 0, true}, dim, group, count, mask));
                    CHECK(error_of<int8_row<float>>({scale}, dim, group, count, mask) < 2e-5);
                }
    CHECK(bytes < 2e-2);
    CHECK(rows < 1e-2);
    if (simd::has_relaxed_products<simd::default_arch, std::int8_t>) CHECK(bytes > 1e-4);
    if (simd::has_relaxed_products<simd::default_arch, bf16>) CHECK(rows > 1e-4);
}

} // namespace records_attended_test
