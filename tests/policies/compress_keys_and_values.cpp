// keys_and_values: the compressor's contract, and the records of the two codecs.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_keys_and_values.hpp>

#include "contracts/compressor.hpp"

namespace compress_keys_and_values_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("k8v4 keeps to the compressor's contract", E, float, f16, bf16) {
    kvtl_test::compressor_contract<k8v4<E>>();
}

TEST_CASE("the key's record comes from the first codec, the value's from the second") {
    const record_shape shape{2, 64};
    const k8v4<float>::state both({}, shape);
    const int8_row<float>::state keys({}, shape);
    const int4_group<float>::state values({}, shape);
    CHECK(both.bytes().key == 2 * 68);
    CHECK(both.bytes().value == 2 * 36);
    const auto row = oracle::normal_values<float>(shape.width(), 1);
    std::vector<std::byte> a(2 * 68), b(2 * 68);
    CHECK(both.encode_key(row.data(), 7, a.data()) == keys.encode_key(row.data(), 7, b.data()));
    CHECK(a == b);
    a.resize(2 * 36), b.resize(2 * 36);
    CHECK(both.encode_value(row.data(), a.data()) == values.encode_value(row.data(), b.data()));
    CHECK(a == b);
}

TEST_CASE("a setting that one of the codecs refuses is refused") {
    using codec = k8v4<f16>;
    CHECK(codec::state::check({}, {1, 64}));
    const status s = codec::state::check({{}, {48, false}}, {1, 64});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "compressor.group_numbers is 48; valid: 32 or 64");
}

} // namespace compress_keys_and_values_test
