// channel_group: the compressor's contract, the record's bytes, keys by channel against their definition, and what a channel
// of large numbers costs the others.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_channel_group.hpp>

#include "contracts/compressor.hpp"

namespace compress_channel_group_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("codes by channel keep to the compressor's contract", P, int4_channel_group<float>,
                   int4_channel_group<f16>, int4_channel_group<bf16>, int2_channel_group<float>,
                   int2_channel_group<f16>) {
    kvtl_test::compressor_contract<P>();
    kvtl_test::compressor_contract<P>([](const record_shape& s) { return typename P::state({64}, s); });
}

TEST_CASE("a record has a step, a middle and 32 codes of each channel, and 32 values") {
    const record_shape one{1, 64}, three{3, 80};
    CHECK(int4_channel_group<>::state({}, one).bytes().key == 64 * (4 + 16));
    CHECK(int2_channel_group<>::state({}, one).bytes().key == 64 * (4 + 8));
    CHECK(int4_channel_group<>::state({}, one).bytes().value == 32 * (2 * 4 + 32));
    CHECK(int2_channel_group<>::state({}, one).bytes().value == 32 * (2 * 4 + 16));
    CHECK(int4_channel_group<>::state({}, three).bytes().key == 3 * 80 * 20);
}

TEST_CASE("every number of a key lies within half a step of its channel's range") {
    const record_shape shape{2, 64};
    const int4_channel_group<float>::state codec({}, shape);
    const std::uint32_t width = shape.width();
    auto rows = oracle::normal_values<float>(32 * width, 5);
    for (std::uint32_t i = 0; i < 32; ++i) rows[i * width + 70] = 50 + 10 * rows[i * width + 70];
    std::vector<std::byte> record(codec.bytes().key);
    CHECK(codec.encode_key(rows.data(), 0, record.data()) == record.size());
    std::vector<float> back(rows.size());
    codec.decode_keys({record.data(), 32, record.size(), nullptr, 32}, back.data());
    for (std::uint32_t c = 0; c < width; ++c) {
        CAPTURE(c);
        double least = 1e9, most = -1e9, error = 0;
        for (std::uint32_t i = 0; i < 32; ++i) {
            const auto x = static_cast<double>(rows[i * width + c]);
            least = std::min(least, x), most = std::max(most, x);
            error = std::max(error, std::fabs(static_cast<double>(back[i * width + c]) - x));
        }
        // 15 steps from the least to the most, and the middle is a bf16.
        CHECK(error <=
              0.5 * (most - least) / 15 * 1.02 + 0x1p-8 * std::max(std::fabs(least), std::fabs(most)));
        CHECK(error > 0);
    }
}

TEST_CASE("a channel that is large in all tokens costs the others no accuracy") {
    const record_shape shape{1, 64};
    const int2_channel_group<float>::state by_channel({}, shape);
    const int2_group<float>::state by_token({}, shape);
    auto rows = oracle::normal_values<float>(32 * 64, 6);
    for (std::uint32_t i = 0; i < 32; ++i) rows[i * 64 + 5] += 40.0F;
    std::vector<float> back(rows.size());
    const auto others = [&] {
        double sum = 0;
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (i % 64 != 5 && i % 64 < 32) // a group of a token has 32 numbers
                sum += std::pow(static_cast<double>(back[i]) - static_cast<double>(rows[i]), 2);
        return sum;
    };
    std::vector<std::byte> record(by_channel.bytes().key), row(by_token.bytes().key);
    static_cast<void>(by_channel.encode_key(rows.data(), 0, record.data()));
    by_channel.decode_keys({record.data(), 32, record.size(), nullptr, 32}, back.data());
    const double channel = others();
    for (std::uint32_t i = 0; i < 32; ++i) {
        static_cast<void>(by_token.encode_key(&rows[i * 64], 0, row.data()));
        by_token.decode_keys({row.data(), 1, row.size()}, &back[i * 64]);
    }
    CHECK(channel < 0.2 * others());
}

TEST_CASE("groups of another size are refused") {
    const status s = int2_channel_group<>::state::check({16}, {1, 64});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "compressor.group_numbers is 16; valid: 32 or 64");
}

} // namespace compress_channel_group_test
