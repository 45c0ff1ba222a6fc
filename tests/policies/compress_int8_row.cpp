// int8_row: the compressor's promises, the record's bytes, and codes as the definition has them.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_int8_row.hpp>

#include "contracts/compressor.hpp"

namespace compress_int8_row_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("int8_row keeps the compressor's promises", E, float, f16, bf16) {
    kvtl_test::compressor_contract<int8_row<E>>();
}

TEST_CASE("a record is a scale and D codes for every head") {
    const int8_row<float>::state one({}, {1, 64}), odd({}, {3, 50});
    CHECK(one.bytes().key == 68);
    CHECK(one.bytes().value == 68);
    CHECK(odd.bytes().key == 3 * 56); // 4 + 50, and 2 up to a multiple of 4

    const std::vector<float> row{0.0F, 1.0F, -2.54F, 0.0049F, 0.031F, 2.54F, -1.262F, 0.62F};
    const int8_row<float>::state eight({}, {1, 8});
    std::vector<std::byte> record(12);
    CHECK(eight.encode_key(row.data(), 0, record.data()) == 12);
    float scale = 0;
    std::memcpy(&scale, record.data(), 4);
    CHECK(scale == doctest::Approx(0.02));
    const int expected[] = {0, 50, -127, 0, 2, 127, -63, 31};
    for (std::size_t d = 0; d < 8; ++d)
        CHECK(static_cast<int>(static_cast<std::int8_t>(record[4 + d])) == expected[d]);
}

TEST_CASE("a scale that no float can hold makes zeros, not infinities") {
    const int8_row<float>::state codec({}, {1, 8});
    std::vector<float> row(8, 1e-42F), back(8, 1.0F);
    std::vector<std::byte> record(codec.bytes().key);
    static_cast<void>(codec.encode_value(row.data(), record.data()));
    codec.decode_values({record.data(), 1, record.size()}, back.data());
    CHECK(back == std::vector<float>(8, 0.0F));
    row.assign(8, 3e38F);
    row[3] = -3.4e38F;
    static_cast<void>(codec.encode_value(row.data(), record.data()));
    codec.decode_values({record.data(), 1, record.size()}, back.data());
    CHECK(back[3] == doctest::Approx(-3.4e38));
    CHECK(std::isfinite(back[0]));
}

} // namespace compress_int8_row_test
