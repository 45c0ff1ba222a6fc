// raw: a record is the row itself, and attention over records is attention over rows to the bit.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_raw.hpp>
#include <kvtl/policies/support/plain_rows.hpp>

#include "contracts/compressor.hpp"

namespace compress_raw_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("raw keeps the compressor's promises", E, float, f16, bf16) {
    kvtl_test::compressor_contract<raw<E>>();
}

TEST_CASE_TEMPLATE("attention over records has the bits of attention over rows", E, float, f16, bf16) {
    const std::uint32_t dim = 96, group = 4;
    const kvtl_test::compressor_suite::encoded<raw<E>> e(
        {2, dim}, 70, kvtl_test::compressor_suite::kind::normal, 5, kvtl_test::by_config<raw<E>>{}({2, dim}));
    const auto q = oracle::normal_values<float>(std::size_t{group} * dim, 6);
    std::vector<float> a(partial_floats(group, dim)), b(a.size()),
        scratch(simd::attend_scratch_floats(group));
    const partial rows = partial_at(a.data(), group, dim), records = partial_at(b.data(), group, dim);
    reset(rows);
    reset(records);
    const std::size_t width = e.shape.width();
    simd::attend_rows<simd::default_arch, E>(q.data(), dim, 0.1F, {e.k.data() + dim, 70, dim, width},
                                             {e.v.data() + dim, 70, dim, width}, nullptr, rows, scratch);
    record_attention(e.codec, {q.data(), dim, 0.1F, 1}, e.keys(), e.values())
        .attend(nullptr, records, scratch);
    CHECK(a == b);
}

} // namespace compress_raw_test
