// nibble_planes: the compressor's contract, what each plane is worth, and the record. SPDX-License-Identifier: MIT
#include <kvtl/policies/compress_byte_row.hpp>
#include <kvtl/policies/compress_nibble_planes.hpp>
#include <kvtl/policies/compress_rotated.hpp>

#include "contracts/compressor.hpp"

namespace compress_nibble_planes_test {

using namespace kvtl;

namespace {
/// Mean square of what a codec changes in 2,000 rows of `dim` normal numbers; with `first_bytes` below the record's,
/// the rest of the record is taken for zeros, and so is its plane.
template <class Codec> double mean_square(std::uint32_t dim, double first_part) {
    const typename Codec::state codec({}, {1, dim});
    std::vector<std::byte> record(codec.bytes().key);
    const auto kept = static_cast<std::size_t>(first_part * static_cast<double>(record.size()));
    std::vector<float> back(dim);
    double square = 0;
    for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
        const auto row = oracle::normal_values<float>(dim, seed);
        static_cast<void>(codec.encode_key(row.data(), 0, record.data()));
        std::fill(record.begin() + static_cast<std::ptrdiff_t>(kept), record.end(), std::byte{0});
        codec.decode_keys({record.data(), 1, record.size()}, back.data());
        for (std::uint32_t d = 0; d < dim; ++d)
            square += std::pow(static_cast<double>(back[d]) - static_cast<double>(row[d]), 2);
    }
    return square / (2000.0 * dim);
}
} // namespace

TEST_CASE_TEMPLATE("nibble planes keep to the compressor's contract", P, nibble_planes<float>,
                   nibble_planes<f16>, nibble_planes<bf16>, rotated<nibble_planes<float>>) {
    kvtl_test::compressor_contract<P>();
}

TEST_CASE("the coarse plane is as good as the best 4 bits, both planes are as good as signed bytes") {
    for (const std::uint32_t dim : {8U, 32U, 64U, 80U, 128U}) {
        CAPTURE(dim);
        const double coarse = mean_square<nibble_planes<float>>(dim, 0.5),
                     both = mean_square<nibble_planes<float>>(dim, 1),
                     bytes = mean_square<int8_row<float>>(dim, 1);
        MESSAGE(dim << " numbers: coarse " << coarse << ", both " << both << ", int8_row " << bytes);
        CHECK(coarse < 1.05 * 0.0095); // Lloyd-Max quantiser of a normal number: 0.0095
        CHECK(both < 1.05 * bytes);
    }
}

TEST_CASE("a record has the coarse and then the fine plane of each head") {
    const record_shape shape{2, 64};
    const nibble_planes<float>::state codec({}, shape);
    const int4_group<float>::state plane({}, {1, 64});
    CHECK(codec.bytes().key == 2 * (36 + 36));
    const auto row = oracle::normal_values<float>(128, 3);
    std::vector<std::byte> record(codec.bytes().key), expected(36);
    CHECK(codec.encode_key(row.data(), 0, record.data()) == record.size());
    for (std::size_t h = 0; h < 2; ++h) {
        static_cast<void>(plane.encode_key(row.data() + h * 64, 0, expected.data()));
        CHECK(std::equal(expected.begin(), expected.end(), record.data() + h * 72));
    }
}

TEST_CASE("nibble_planes refuses heads that it has no room for") {
    CHECK(nibble_planes<>::state::check({}, {1, 512}));
    const status s = nibble_planes<>::state::check({}, {1, 520});
    REQUIRE(!s);
    CHECK(std::string_view(s.what()) == "shape.head_dim is 520; valid for nibble_planes: at most 512");
}

} // namespace compress_nibble_planes_test
