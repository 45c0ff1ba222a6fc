// residual_corrected: the compressor's contract, the record's bytes, codes alone without corrections, outliers and a residual of low
// rank that come back, and the energy of the corrections against singular values in double precision.
// SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_channel_group.hpp>
#include <kvtl/policies/compress_residual_corrected.hpp>

#include "contracts/compressor.hpp"

namespace compress_residual_corrected_test {

using namespace kvtl;

namespace {

using two_bits = residual_corrected<int2_channel_group<float>, float>;
constexpr record_shape one_head{1, 64};

std::vector<float> back(const two_bits::state& codec, const std::vector<float>& rows, bool keys) {
    std::vector<std::byte> record(keys ? codec.bytes().key : codec.bytes().value);
    std::vector<float> out(rows.size());
    const records_view view{record.data(), 32, record.size(), nullptr, 32};
    if (keys) {
        CHECK(codec.encode_key(rows.data(), 0, record.data()) == record.size());
        codec.decode_keys(view, out.data());
    } else {
        CHECK(codec.encode_value(rows.data(), record.data()) == record.size());
        codec.decode_values(view, out.data());
    }
    return out;
}
double energy(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    return sum;
}
/// The largest singular values' share of the energy of (32, D): power iteration in double precision, one after the other.
double energy_of_directions(std::vector<double> m, std::size_t dim, std::size_t rank) {
    double found = 0;
    for (std::size_t j = 0; j < rank; ++j) {
        std::vector<double> b(dim, 0.0), a(32, 0.0);
        oracle::generator random(j);
        for (double& x : b) x = random.normal();
        double size = 0;
        for (int turn = 0; turn < 500; ++turn) {
            double length = 0;
            for (const double x : b) length += x * x;
            for (double& x : b) x /= std::sqrt(length);
            for (std::size_t t = 0; t < 32; ++t) {
                a[t] = 0;
                for (std::size_t d = 0; d < dim; ++d) a[t] += m[t * dim + d] * b[d];
            }
            size = 0;
            for (const double x : a) size += x * x;
            if (turn == 499) break;
            std::fill(b.begin(), b.end(), 0.0);
            for (std::size_t t = 0; t < 32; ++t)
                for (std::size_t d = 0; d < dim; ++d) b[d] += m[t * dim + d] * a[t];
        }
        found += size;
        for (std::size_t t = 0; t < 32; ++t)
            for (std::size_t d = 0; d < dim; ++d) m[t * dim + d] -= a[t] * b[d];
    }
    return found;
}
} // namespace

TEST_CASE_TEMPLATE("corrected codes keep to the compressor's contract", P,
                   residual_corrected<int2_channel_group<float>>,
                   residual_corrected<int4_channel_group<float>, bf16>) {
    kvtl_test::compressor_contract<P>();
}

TEST_CASE("a record has the codes, r pairs of vectors, and a place and a difference of each outlier") {
    const two_bits::state codec({}, one_head), three({.rank = 3, .outliers = 0}, {3, 80});
    const int2_channel_group<float>::state codes({}, one_head), wide({}, {1, 80});
    CHECK(codec.bytes().key == codes.bytes().key + 2 * (32 + 64) * 2 + 41 * 4);
    CHECK(codec.bytes().value == codes.bytes().value + 2 * (32 + 64) * 2 + 41 * 4);
    CHECK(three.bytes().key == 3 * (wide.bytes().key + 3 * (32 + 80) * 2));
}

TEST_CASE("without corrections the numbers are those of the codes") {
    const two_bits::state none({.rank = 0, .outliers = 0}, one_head);
    const int2_channel_group<float>::state codes({}, one_head);
    const auto rows = oracle::normal_values<float>(32 * 64, 1);
    std::vector<std::byte> record(codes.bytes().key);
    std::vector<float> out(rows.size());
    static_cast<void>(codes.encode_key(rows.data(), 0, record.data()));
    codes.decode_keys({record.data(), 32, record.size(), nullptr, 32}, out.data());
    CHECK(back(none, rows, true) == out);
    CHECK(codes.encode_value(rows.data(), record.data()) == none.bytes().value);
}

TEST_CASE("the numbers furthest from their channel or token come back, and widen no step") {
    const two_bits::state codec({.rank = 0, .outliers = 0.01}, one_head),
        none({.rank = 0, .outliers = 0}, one_head);
    for (const bool keys : {true, false}) {
        CAPTURE(keys);
        auto rows = oracle::normal_values<float>(32 * 64, 2);
        const auto clean = rows;
        const std::size_t places[] = {3, 64 + 3, 700, 1501, 2047}; // 20 are kept
        for (const std::size_t p : places) rows[p] += p % 2 == 0 ? 40.0F : -40.0F;
        const auto out = back(codec, rows, keys);
        for (const std::size_t p : places) // a difference is an f16
            CHECK(static_cast<double>(std::fabs(out[p] - rows[p])) <= 40 * 0x1p-10);
        CHECK(energy(out, rows) < 1.05 * energy(back(none, clean, keys), clean));
        CHECK(energy(out, rows) < 0.7 * energy(back(none, rows, keys), rows));
    }
}

TEST_CASE("the low rank holds almost the energy of the largest singular values of what the codes lose") {
    const two_bits::state none({.rank = 0, .outliers = 0}, one_head);
    for (const std::uint32_t rank : {1U, 2U, 4U, 8U})
        for (const bool keys : {true, false}) {
            CAPTURE(rank);
            CAPTURE(keys);
            const two_bits::state codec({.rank = rank, .outliers = 0}, one_head);
            const auto rows = oracle::normal_values<float>(32 * 64, 3);
            const auto codes = back(none, rows, keys);
            std::vector<double> lost;
            for (std::size_t i = 0; i < rows.size(); ++i)
                lost.push_back(static_cast<double>(rows[i]) - static_cast<double>(codes[i]));
            const double before = energy(codes, rows), best = energy_of_directions(lost, 64, rank),
                         gained = before - energy(back(codec, rows, keys), rows);
            CHECK(gained > 0.9 * best);
            CHECK(gained < 1.001 * best);
        }
}

TEST_CASE("settings out of range are refused, with the valid ones") {
    const auto says = [](const two_bits::config& c, std::uint32_t dim, const char* what) {
        const status s = two_bits::state::check(c, {1, dim});
        REQUIRE(!s);
        CHECK(std::string_view(s.what()) == what);
    };
    says({.rank = 9}, 64, "compressor.rank is 9; valid: 0 to 8");
    says({.outliers = 0.3}, 64, "compressor.outliers is 0.3; valid: 0 to 0.25");
    says({.outliers = NAN}, 64, "compressor.outliers is nan; valid: 0 to 0.25");
    says({}, 512, "shape.head_dim is 512; valid for corrected records: at most 256");
    says({.codes = {16}}, 64, "compressor.group_numbers is 16; valid: 32 or 64");
}

} // namespace compress_residual_corrected_test
