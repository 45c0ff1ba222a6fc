// rotated: the compressor's contract, records against those of rotated rows, and the errors of rows with outlier channels.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_keys_and_values.hpp>
#include <kvtl/policies/compress_rotated.hpp>

#include "contracts/compressor.hpp"

namespace compress_rotated_test {

using namespace kvtl;

namespace {

/// Root mean square of what a codec adds to the logits of 1,024 keys of 64 numbers for one query. Numbers are normal, but
/// two channels, 5 and 37, are `large` times as large and shifted by `mean`.
template <class Codec> double logit_error(double large, double mean) {
    const record_shape shape{1, 64};
    const typename Codec::state codec({}, shape);
    const auto q = oracle::normal_values<float>(64, 9);
    auto rows = oracle::normal_values<float>(1024 * 64, 1);
    std::vector<std::byte> record(codec.bytes().key);
    double square = 0;
    for (std::size_t i = 0; i < 1024; ++i) {
        float* row = &rows[i * 64];
        for (const std::size_t d : {5U, 37U})
            row[d] = static_cast<float>(mean + large * static_cast<double>(row[d]));
        static_cast<void>(codec.encode_key(row, 0, record.data()));
        float got = 0;
        codec.score(q.data(), 64, 1, {record.data(), 1, record.size()}, 0, &got, 1);
        square += std::pow(static_cast<double>(got) - oracle::dot(q.data(), row, 64), 2) / 1024;
    }
    return std::sqrt(square / 64); // a logit is q . k / sqrt(D)
}

} // namespace

TEST_CASE_TEMPLATE("rotated codecs keep to the compressor's contract", P, rotated<int4_group<float>, float>,
                   rotated<int4_group<float>>, rotated<int2_group<float>, bf16>, rotated<k8v4<float>>,
                   rotated<fp8_row<float>>) {
    kvtl_test::compressor_contract<P>();
}

TEST_CASE("a record has, for each head, the record of the rotated head") {
    const record_shape shape{3, 80}, one{1, 80};
    using inner = keys_and_values<int8_row<float>, int4_group<float>>;
    const rotated<inner, float>::state codec({}, shape);
    const inner::state of_head({}, one);
    const auto row = oracle::normal_values<float>(shape.width(), 1);
    std::vector<std::byte> key(codec.bytes().key), value(codec.bytes().value);
    CHECK(codec.encode_key(row.data(), 0, key.data()) == key.size());
    CHECK(codec.encode_value(row.data(), value.data()) == value.size());
    for (std::uint32_t h = 0; h < 3; ++h) {
        std::vector<float> x(row.begin() + h * 80, row.begin() + (h + 1) * 80);
        simd::hadamard(x.data(), 80);
        std::vector<std::byte> expected(of_head.bytes().key);
        static_cast<void>(of_head.encode_key(x.data(), 0, expected.data()));
        CHECK(std::equal(expected.begin(), expected.end(), key.begin() + h * of_head.bytes().key));
        expected.resize(of_head.bytes().value);
        static_cast<void>(of_head.encode_value(x.data(), expected.data()));
        CHECK(std::equal(expected.begin(), expected.end(), value.begin() + h * of_head.bytes().value));
    }
}

TEST_CASE(
    "channels of large numbers cost the logits little after the rotation, and nothing is lost without them") {
    using plain = int4_group<float>;
    using turned = rotated<int4_group<float>, float>;
    CHECK(logit_error<turned>(1, 0) < 1.1 * logit_error<plain>(1, 0));
    CHECK(logit_error<turned>(20, 0) < 0.25 * logit_error<plain>(20, 0));
    CHECK(logit_error<turned>(1, 60) < 0.2 * logit_error<plain>(1, 60));
    CHECK(logit_error<rotated<int2_group<float>, float>>(20, 0) <
          0.2 * logit_error<int2_group<float>>(20, 0));
}

TEST_CASE("two compositions have two names") {
    CHECK(rotated<int4_group<float>>::name == "rotated(int4_group)");
    CHECK(rotated<k8v4<float>>::name != rotated<int4_group<float>>::name);
}

TEST_CASE("head sizes with small blocks and settings that the codec refuses are refused") {
    using codec = rotated<int4_group<float>>::state;
    CHECK(codec::check({}, {2, 72}));
    for (const std::uint32_t dim : {4U, 50U, 520U}) {
        const status s = codec::check({}, {2, dim});
        REQUIRE(!s);
        CHECK(std::string(s.what()) == "shape.head_dim is " + std::to_string(dim) +
                                           "; valid for rotated entries: a multiple of 8, at most 512");
    }
    const status s = codec::check({48, false}, {2, 64});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "compressor.group_numbers is 48; valid: 32 or 64");
}

} // namespace compress_rotated_test
