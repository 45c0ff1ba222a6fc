// int8_row and fp8_row: the compressor's contract, the record's bytes, and codes as the definition has them.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>

#include "contracts/compressor.hpp"

namespace compress_byte_row_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("codes of a byte keep to the compressor's contract", P, int8_row<float>, int8_row<f16>,
                   int8_row<bf16>, fp8_row<float>, fp8_row<f16>, fp8_row<bf16>) {
    kvtl_test::compressor_contract<P>();
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

TEST_CASE("a record of E4M3 has the bytes of one of signed bytes, and small numbers keep their digits") {
    CHECK(fp8_row<float>::state({}, {3, 50}).bytes().key == int8_row<float>::state({}, {3, 50}).bytes().key);
    const fp8_row<float>::state eight({}, {1, 8});
    const std::vector<float> row{448.0F, -448.0F, 0.0F, 1.0F, -17.0F, 0.013671875F, 0x1p-9F, 0x1p-10F};
    std::vector<std::byte> record(12);
    CHECK(eight.encode_key(row.data(), 0, record.data()) == 12);
    float scale = 0;
    std::memcpy(&scale, record.data(), 4);
    CHECK(scale == 256.0F); // the largest code is read as 1.75
    // Sign, exponent + 7, mantissa: 1.75 * 2^8, 1, 1 * 2^4 (17 is halfway to 18, and 16 is even), 7 and 1 subnormal steps.
    const unsigned expected[] = {0x7E, 0xFE, 0, 0x38, 0xD8, 7, 1, 0};
    for (std::size_t d = 0; d < 8; ++d) CHECK(std::to_integer<unsigned>(record[4 + d]) == expected[d]);
    std::vector<float> back(8);
    eight.decode_keys({record.data(), 1, 12}, back.data());
    CHECK(back == std::vector<float>{448.0F, -448.0F, 0.0F, 1.0F, -16.0F, 0.013671875F, 0x1p-9F, 0.0F});
}

TEST_CASE_TEMPLATE("a scale that no float can hold makes zeros, not infinities", P, int8_row<float>,
                   fp8_row<float>) {
    const typename P::state codec({}, {1, 8});
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

} // namespace compress_byte_row_test
