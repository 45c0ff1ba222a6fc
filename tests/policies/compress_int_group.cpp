// int4_group and int2_group: the compressor's contract, the record's bytes, and the step against a search.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_int_group.hpp>

#include "contracts/compressor.hpp"

namespace compress_int_group_test {

using namespace kvtl;

TEST_CASE_TEMPLATE("codes in groups keep to the compressor's contract", Policy, int4_group<float>,
                   int4_group<f16>, int4_group<bf16>, int2_group<float>, int2_group<f16>) {
    kvtl_test::compressor_contract<Policy>();
    for (const bool zero_point : {false, true})
        for (const std::uint32_t numbers : {32U, 64U}) {
            CAPTURE(zero_point);
            CAPTURE(numbers);
            kvtl_test::compressor_contract<Policy>([&](const record_shape& s) {
                return typename Policy::state({numbers, zero_point}, s);
            });
        }
}

TEST_CASE("a record is steps, middles if any, and codes, for every head") {
    const record_shape one{1, 64}, odd{3, 50};
    CHECK(int4_group<float>::state({}, one).bytes().key == 2 * 2 + 32);
    CHECK(int4_group<float>::state({64, false}, one).bytes().key == 2 + 32 + 2); // up to a multiple of 4
    CHECK(int4_group<float>::state({32, true}, one).bytes().value == 4 * 2 + 32);
    CHECK(int2_group<float>::state({}, one).bytes().key == 2 * 2 + 16);
    CHECK(int4_group<float>::state({}, odd).bytes().key == 3 * 32); // 4 + 25, and 3 more
    // Step 2: levels -15, -13, .. 15, and the codes of the first two numbers.
    std::vector<float> row(32);
    for (std::size_t d = 0; d < 32; ++d) row[d] = static_cast<float>(static_cast<int>(d % 16) * 2 - 15);
    std::vector<std::byte> record(2 + 16 + 2);
    CHECK(int4_group<float>::state({}, {1, 32}).encode_key(row.data(), 0, record.data()) == 20);
    bf16 step{};
    std::memcpy(&step, record.data(), sizeof step);
    CHECK(to_float(step) == 2.0F);
    for (unsigned j = 0; j < 16; ++j) CHECK(std::to_integer<unsigned>(record[2 + j]) == 17 * j);
    std::vector<float> back(32);
    int4_group<float>::state({}, {1, 32}).decode_keys({record.data(), 1, 20}, back.data());
    CHECK(back == row);
}

TEST_CASE("the step is nearly the best one, and better than the largest magnitude makes it") {
    double fitted = 0, plain = 0, best = 0;
    for (std::uint64_t seed = 1; seed <= 50; ++seed) {
        auto x = oracle::normal_values<float>(32, seed);
        const float largest = std::fabs(*std::max_element(
            x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        for (float& y : x) y /= largest;
        const auto error = [&](double step) {
            double sum = 0;
            for (const float y : x) {
                const double level = std::clamp(std::floor(static_cast<double>(y) / step), -2.0, 1.0) + 0.5;
                sum += std::pow(static_cast<double>(y) - level * step, 2);
            }
            return sum;
        };
        fitted += error(static_cast<double>(simd::fit_step<2>(x.data(), 32)));
        plain += error(1 / 1.5);
        double least = 1e9;
        for (double step = 0.445; step <= 0.667; step += 0.001) least = std::min(least, error(step));
        best += least;
    }
    CHECK(fitted < 1.05 * best);
    CHECK(fitted < 0.9 * plain);
}

TEST_CASE("a group of no more than one number keeps it, and zeros stay zeros") {
    using codec = int4_group<float>;
    std::vector<float> row(64, 0.0F), back(64, 1.0F);
    row[40] = -3.0F;
    const codec::state s({32, true}, {1, 64});
    std::vector<std::byte> record(s.bytes().key);
    static_cast<void>(s.encode_value(row.data(), record.data()));
    s.decode_values({record.data(), 1, record.size()}, back.data());
    for (std::size_t d = 0; d < 32; ++d) CHECK(back[d] == 0.0F);
    CHECK(back[40] == doctest::Approx(-3.0).epsilon(0.08));
}

TEST_CASE("groups of another size are refused") {
    const status s = int4_group<>::state::check({16, false}, {1, 64});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "compressor.group_numbers is 16; valid: 32 or 64");
}

} // namespace compress_int_group_test
